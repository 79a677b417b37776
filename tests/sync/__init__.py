"""The client for plain threads."""
