"""The server's side of a federation on Flower: its nodes, what is asked of them, and which replies are accepted."""
