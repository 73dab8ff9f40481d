"""Files: read with limits, written atomically, tensors a few rows at a time."""
