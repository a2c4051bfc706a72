"""Histories of a lakeFS repository: clients of a server that knows of no collector, beside it."""
