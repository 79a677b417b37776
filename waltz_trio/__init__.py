"""Waltz on Trio: drivers of the core, and the public client."""
