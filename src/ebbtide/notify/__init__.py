"""Tells other programs how a run ended: a file for Prometheus, a webhook, and a program.

Not for: metrics of the server (`server/metrics.py`), or the outcome of a run, which never depends
on whether the others could be told.
"""
