"""Ebbtide: retention and garbage collection for versioned data on object storage."""
