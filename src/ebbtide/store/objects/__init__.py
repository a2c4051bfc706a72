"""Objects at paths: reading, copying, moving and deleting them, and locators.

How bytes come to the storage belongs to `staging`.
"""
