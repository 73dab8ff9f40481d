"""What runs on the server for every run."""

from fedsoft.engines.flower.serverapp import app as app
