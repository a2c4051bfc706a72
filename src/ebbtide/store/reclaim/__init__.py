"""The reclaimer: deletes released addresses beside writers, without a run.

`claims` has its statements, `reclaimer` its passes. A transaction that drops a reference records
the address in `staging.released`; nothing else may delete a file here.
"""
