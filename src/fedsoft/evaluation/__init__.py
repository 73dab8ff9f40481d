"""How good a run is. The only room that may look at the truth."""
