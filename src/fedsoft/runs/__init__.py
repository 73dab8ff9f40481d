"""Runs on disk: the spec as text, the folder with its log and checkpoints; started, resumed, found and loaded again."""
