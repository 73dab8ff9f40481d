"""Replies that are seen as sums only: how they are coded, weighed and added up. See docs/secure.md."""
