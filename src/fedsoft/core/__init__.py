"""The types that everything else is made of: client data, models, the contract of algorithms; and the local solve."""
