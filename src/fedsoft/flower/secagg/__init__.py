"""Secure aggregation: a sum of vectors that nobody sees one by one (Bonawitz et al., CCS 2017; Bell et al., CCS 2020).

Both sides are plain objects that take and return messages (`party`, `aggregator`), wherever these travel. Cryptography
is that of the package `cryptography` and of Flower (`primitives`). See docs/secure.md.
"""
