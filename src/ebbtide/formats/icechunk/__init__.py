"""Icechunk repositories of spec versions 1 and 2, on the storage of their users.

`repository` is the format. `files` opens Icechunk's files, `repo` and `snapshots` read them,
`state` finds reachable snapshots, and `edits` changes history. `walk` is the second reader, and
imports none of them. Icechunk itself is not used, except by tests.
"""
