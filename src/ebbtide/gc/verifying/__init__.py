"""Verifies a plan before its sweep, and the record of the sweep after it.

No module here imports the mark, the index, the subtraction or keys: verification reads trees and
nodes with a walk of its own. It shares two things with a run. One is the function that decides
which commits stay (`retention.decision`), which is pure. The other is the format's reading of its
metadata.
"""
