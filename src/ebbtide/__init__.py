"""Ebbtide: retention and garbage collection for versioned data on object storage.

The modules here are values and helpers that all packages share; they import no package. A helper
with a single user belongs beside it.
"""
