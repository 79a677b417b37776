"""Bugs planted on purpose, to see who finds them."""
