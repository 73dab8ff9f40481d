"""The machine: cores, memory and threads."""
