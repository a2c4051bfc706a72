"""What a collector run asks of a store, and what it changes in it.

The functions work in transactions of their caller, so that `formats.embedded` and `formats.gone`
show all transactions of a run. Deciding what is deleted belongs to `ebbtide.gc`.
"""
