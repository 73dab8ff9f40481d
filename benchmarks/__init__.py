"""Speed, as ratios in one run: `python -m benchmarks` prints the table of what is to be reached."""
