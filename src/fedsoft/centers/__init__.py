"""What algorithms with several centers share: how centers start, whose points are whose, how they are averaged."""
