"""What clustered algorithms share: initial centers, assignment of points to centers, selection, averaging."""
