"""What runs on a node for every message."""

from fedsoft.engines.flower.clientapp import app as app
