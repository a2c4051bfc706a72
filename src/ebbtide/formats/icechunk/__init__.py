"""Icechunk repositories of spec versions 1 and 2, on the storage of their users."""
