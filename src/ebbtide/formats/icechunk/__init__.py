"""Icechunk repositories of spec versions 1 and 2, on the storage of their users.

`repository` is the format. `repo`, `snapshots`, `manifests` and `logs` read Icechunk's files,
`state` finds reachable snapshots, and `expiring` rewrites history. `walk` is the second reader, and
imports none of them. Icechunk itself is not used, except by tests.
"""
