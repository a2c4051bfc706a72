"""The content of versions: entries in ranges in trees, as immutable files on a storage.

The package reads, builds, compares and merges trees. It uses no SQL, and knows no branches or
commits: the caller names the trees.
"""
