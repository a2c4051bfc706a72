"""The data that a collector run reads and changes in a store.

The functions work in transactions of their caller, so that `formats.embedded` and `formats.gone`
show all transactions of a run. Deciding what is deleted belongs to `ebbtide.gc`.
"""
