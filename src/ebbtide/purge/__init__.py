"""Purge: deletes the data that an administrator names, at once and for good."""
