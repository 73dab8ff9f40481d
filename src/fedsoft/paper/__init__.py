"""The tables and figures of the FedSoft paper (Ruan & Joe-Wong, AAAI 2022): published values, our runs, and both beside
each other."""
