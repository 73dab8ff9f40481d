"""Clients that join after training: their mixture, a model, and whether any center fits them."""
