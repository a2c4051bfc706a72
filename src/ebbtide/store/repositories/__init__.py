"""Repositories: their rows, owners, leases, promises, trash and removals.

These modules handle a repository as a whole. Its content belongs to other packages.
"""
