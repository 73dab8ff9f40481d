"""A whole federation on this machine, for trying: SuperLink and nodes on loopback, with TLS and node authentication."""
