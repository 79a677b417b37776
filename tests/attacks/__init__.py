"""Hostile peers at every port of a cluster of real processes, beside honest clients under load."""
