"""Sweeps a plan, and undoes a sweep that quarantined its candidates."""
