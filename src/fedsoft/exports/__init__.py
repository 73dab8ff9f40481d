"""Models for others: files, and a card that describes them."""
