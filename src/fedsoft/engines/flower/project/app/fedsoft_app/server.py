"""What runs on the server for every run."""

from fedsoft.engines.flower import serverapp

app = serverapp.app  # Flower looks for an assignment
