"""The reclaimer: deletes released addresses without a run, while other processes write.

`claims` has its statements, `reclaimer` its passes. A transaction that drops a reference records
the address in `staging.released`; the reclaimer deletes no other files.
"""
