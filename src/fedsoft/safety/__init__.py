"""Malicious, failing and private clients: which replies are accepted, where noise is added, what is published."""
