"""The clients' side of a federation on Flower: what its owner allows (`policy`), and what is sent."""
