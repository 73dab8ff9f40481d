"""Data in files: formats, tables and downloads; sources and clients made of images."""
