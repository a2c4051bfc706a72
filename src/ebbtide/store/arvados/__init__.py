"""Arvados's view of one repository: its ids, projects, lists and links.

Not for: HTTP.
"""
