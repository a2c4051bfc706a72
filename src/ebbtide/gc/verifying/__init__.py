"""Verification of a plan before its sweep, and of a sweep's record after it.

By a walk of its own: nothing here imports the mark, the index, the subtraction or keys. What it
shares with a run is the rule by which commits stay (`retention.decision`), which is pure, and what
the format says in one reading of its metadata.
"""
