"""Access to a store: access keys, sessions, and the keys that sign tokens.

Not for: routes, pages and cookies, which belong to the server.
"""
