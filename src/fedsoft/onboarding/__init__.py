"""People who come after training."""
