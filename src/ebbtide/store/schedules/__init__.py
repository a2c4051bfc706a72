"""Schedules: when servers start runs, and what became of their due times.

Not for: starting the runs, which the server does.
"""
