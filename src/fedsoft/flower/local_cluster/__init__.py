"""A whole federation on this machine to try things out: SuperLink and nodes on loopback, with TLS and node keys."""
