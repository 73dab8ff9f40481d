"""All methods on all federations: what was measured, every number with the run that it comes from."""
