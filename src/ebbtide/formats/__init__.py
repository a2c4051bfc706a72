"""Repository formats: each is one class that gives the collector its five relations.

`base` is the contract. `embedded` and `gone` are for the store's own repositories, `icechunk` for
Icechunk's, and `lakefs` for those of a lakeFS server. `plain` has the base classes of formats
without a database. The collector imports `base` alone. Not for: the choice of commits
(`retention`), or the steps of a run (`gc`).
"""
