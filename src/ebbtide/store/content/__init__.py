"""The content of versions: entries in ranges in trees, as immutable files on a storage.

Reading, building, comparing and merging trees. No SQL here, and no branches or commits: the caller
says which trees.
"""
