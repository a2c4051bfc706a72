"""Records of purges, and the check that refuses a new reference to a purged address.

Purging itself is `ebbtide.purge`.
"""
