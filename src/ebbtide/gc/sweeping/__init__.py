"""Sweeps a plan, and undoes a sweep that quarantined its candidates.

`sweep` passes the fence and rechecks, and `outcomes` deletes and records. `intents` announces each
batch of deletes, and `undoing` restores. A sweep deletes only files that its plan names.
"""
