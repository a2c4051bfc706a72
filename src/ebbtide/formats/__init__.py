"""Repository formats: each is one class that gives the collector its five relations.

`base` is the contract, and `capabilities` has what a format may have besides. `embedded` and `gone`
are for the store's own repositories, `icechunk` for Icechunk's, and `lakefs` for those of a lakeFS
server. Not for: the choice of commits (`retention`), or the steps of a run (`gc`).
"""
