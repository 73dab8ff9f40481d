"""A true federation on Flower: clients at nodes of their own, behind TLS and keys, with their memory on their own disks.

    wire, frames        what crosses the wire, and the worker's socket
    nodefile, node      a node as one TOML file; the clients' side
    memory              what clients keep, on the node's disk
    worker, clientapp   the resident worker; the thin app that Flower starts for every message
    screen, engine      what is believed; the server's side, behind `ask`
    serverapp           what Flower starts on the server
    loopback, drive     a whole federation on this machine; a run on it
    strategy            FedSoft for an existing Flower app

Nothing is imported here: the app on a node has no time for it.
"""
