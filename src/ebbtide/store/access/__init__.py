"""Who may come in: access keys, sessions, and what signs tokens.

Nothing here knows routes, pages or cookies: they belong to the server.
"""
