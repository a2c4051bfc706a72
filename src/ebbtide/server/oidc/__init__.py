"""Logins by an issuer of OpenID Connect: the settings, the issuer's answers, its tokens, and roles.

Not for: the pages of a login (`pages.login`), or sessions (`store.access`).
"""
