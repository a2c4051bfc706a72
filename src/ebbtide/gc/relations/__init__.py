"""The relations that plans and sweeps compute from: listed, live and protected addresses.

`inventory` and `listing` find the files that exist, and `trees` and `live` the addresses that
commits need. `protected` has the addresses that stay without a commit. `index` remembers what
earlier runs read. Not for: comparing the relations (`planning`).
"""
