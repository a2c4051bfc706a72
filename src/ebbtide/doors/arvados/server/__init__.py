"""The API of Arvados, over the collections and projects of one repository.

Not for: blocks, manifests and signatures (`doors.arvados.store`).
"""
