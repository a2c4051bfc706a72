"""Sweeps a plan, and undoes a sweep that quarantined its candidates.

`sweep` passes the fence and rechecks, `outcomes` deletes and records, `intents` says what may be
deleted at this moment, and `undoing` restores. A sweep takes only what its plan names.
"""
