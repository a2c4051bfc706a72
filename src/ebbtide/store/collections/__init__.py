"""Projects, the collections in them, and the contents of collections.

`contents` makes the content of a collection, which is a commit without a history. Not for: locators
(`objects`), or the data that a run keeps for collections (`gc`).
"""
