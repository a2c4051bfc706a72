"""Records of purges, and the check that refuses a new reference to a purged address.

`ebbtide.purge` carries out the purges.
"""
