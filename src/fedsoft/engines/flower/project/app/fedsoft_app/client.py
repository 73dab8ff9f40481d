"""What runs on a node for every message."""

from fedsoft.engines.flower import clientapp

app = clientapp.app  # Flower looks for an assignment
