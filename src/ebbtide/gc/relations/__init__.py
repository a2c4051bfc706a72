"""The relations that plans and sweeps compute from: listed, live and protected addresses.

`inventory` and `listing` say what there is, `trees` and `live` what commits need,
`protected` what stays without a commit, and `index` what earlier runs read. Not for: comparing them
(`planning`).
"""
