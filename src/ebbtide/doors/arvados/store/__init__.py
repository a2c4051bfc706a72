"""Arvados's view of one repository: its ids, blocks, projects, lists and links.

Not for: HTTP.
"""
