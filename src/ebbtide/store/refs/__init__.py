"""Branches and tags, what an expression such as `main~2` means, and retention settings.

Moving a branch to a new commit belongs to `commits`.
"""
