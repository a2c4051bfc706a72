"""Purge: deletes the data that an administrator names, at once and for good.

`purger` leads a purge from its request to its signed record. It is planned (`request`, `objects`,
`references`, `plan`), closed in one transaction (`references`), and then deleted (`deleting`). Not
for: commits that a policy expires (`gc`), or the files in a quarantine (`gc.quarantines`).
"""
