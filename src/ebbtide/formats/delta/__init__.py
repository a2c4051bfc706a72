"""Delta Lake tables: a table, or several tables below one root, as one repository.

`log` finds the files of a log and the versions that they can rebuild, `actions` reads them,
`layout` reads what kept versions need, and `repository` is what the collector sees. Not for:
reading rows.

Source: Delta Transaction Log Protocol (PROTOCOL.md of delta-io/delta, August 2026).
"""
