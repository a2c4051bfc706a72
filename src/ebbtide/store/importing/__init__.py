"""Imports: objects outside the repository become entries of a commit, by reference."""
