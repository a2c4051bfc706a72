"""Explains why a file or commit exists, or why a run deleted it."""
