"""Carrying a plan out, and bringing back what was moved aside."""
