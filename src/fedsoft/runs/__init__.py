"""Runs on disk: as text, as a folder, carried out and resumed."""
