"""Icechunk repositories, spec versions 1 and 2, on the storage where their users have them."""
