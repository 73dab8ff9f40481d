"""The types that everything else is made of, and the local solve."""
