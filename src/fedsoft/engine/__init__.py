"""Where clients live: in this process, or spread over Ray."""
