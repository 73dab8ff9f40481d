"""The site: pages from `docs/`, from docstrings and from what commands print, executed while it is built."""
