"""Iceberg tables: the warehouse of a catalog as one repository.

`catalog` finds the tables, `metadata` reads what they name, `avro` reads their lists and manifests,
and `repository` is what the collector sees. Not for: reading rows.
"""
