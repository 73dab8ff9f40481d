"""Images as data sets: their file formats, where they are published, and the sources and clients made of them."""
