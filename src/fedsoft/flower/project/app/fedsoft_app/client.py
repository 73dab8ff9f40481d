"""What runs on a node for every message."""

from fedsoft.flower.node import client_app

app = client_app.app  # Flower looks for an assignment
