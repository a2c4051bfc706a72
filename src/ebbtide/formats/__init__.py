"""Repository formats: each is one class that gives the collector its five relations.

`base` is the contract. `embedded` and `gone` are the store's own repositories, `icechunk` is
Icechunk's, and `plain` is what formats without a database build on. The collector imports `base`
alone. Not for: which commits stay (`retention`), or how a run goes on (`gc`).
"""
