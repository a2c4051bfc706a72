"""Histories of an Icechunk repository: clients that know nothing of a collector, beside it."""
