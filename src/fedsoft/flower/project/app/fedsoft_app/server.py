"""What runs on the server for every run."""

from fedsoft.flower.server import server_app

app = server_app.app  # Flower looks for an assignment
