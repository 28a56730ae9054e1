"""Bring one call to a server and its reply back, in every pairing of generations."""
