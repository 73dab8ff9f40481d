"""Networks over a stack of clients: any torch.nn.Module; plain chains with a backward pass written by hand."""
