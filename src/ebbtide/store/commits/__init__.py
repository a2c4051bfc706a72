"""New commits: from staged changes, merges, reverts and cherry-picks. Also logs and differences.

The rows of commits are in `database.commit_rows`.
"""
