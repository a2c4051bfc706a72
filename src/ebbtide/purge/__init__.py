"""Expedited delete: what an administrator names goes at once, and for good."""
