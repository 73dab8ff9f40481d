"""Clients that lie, fail or must not be given away: who is believed, what is noised, what is published."""
