"""Repositories: their rows, owners, leases, promises, ends and removals.

For what concerns a repository as a whole. What is inside of one belongs to the packages that
follow.
"""
