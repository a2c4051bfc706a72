"""Projects, the collections in them, and the contents of collections.

`contents` makes the content of a collection, which is a commit without a history. Locators belong
to `objects`, and what a run keeps of collections to `collecting`.
"""
