"""New commits: of staged changes, merges, reverts. Also logs and differences.

The rows of commits are in `database.commits`.
"""
