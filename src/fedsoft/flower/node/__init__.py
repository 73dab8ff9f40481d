"""The clients' side of a federation on Flower."""
