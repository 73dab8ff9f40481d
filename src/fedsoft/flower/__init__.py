"""A federation on Flower: clients at nodes of their own, behind TLS and keys, with memory on their own disks.

    submit              submit a run to a federation and follow it; `submission`: the run and its outcome, as files
    request, wire       the head of a message to a node; messages as bytes
    launcher            starts Flower's apps in milliseconds, and those of fedsoft only; `frames` is its local socket
    keys                make and check certificates and keys
    local_cluster/      a whole federation on this machine: `files`, `processes`, `flwr` (Flower's commands), `cluster`
    project/            what `fedsoft flower init` writes for a real federation

    server/server_app   the ServerApp, which runs any algorithm; `superlink_watch` notices when the SuperLink is lost
    server/engine       the engine behind `ask`; `exchange`, `grid_transport`: messages to nodes and back
    server/terms        how long clients have, how many must answer, what is accepted
    server/node_registry, identity              which node speaks for which client, by its key
    server/expected_replies, reply_validator    what replies must look like and may cost; what is accepted
    server/score_replies                        how clients score themselves
    server/attempt      what the server keeps of a run, so that nodes know it again; `event_log`: what happened
    server/strategy     FedSoft as a strategy for an existing Flower app

    node/client_app     the thin ClientApp, started for every message; `app_guard`: no app that a server ships is run
    node/worker         the resident worker, which ends jobs that take too long or too much memory
    node/config, policy a node as one TOML file; what its owner lets a server do; `own_points`: its clients
    node/node           answers requests; `experiments`: the runs that it holds; `refusals`: all that it says of them
    node/client_memory  what clients keep, on the node's disk
    node/request_log, privacy_budget            how often it was asked, and what noise was spent, over restarts

Nothing is imported here: the app on a node is a new process for every message.
"""
