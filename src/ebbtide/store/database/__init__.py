"""The metadata database: its connections, its tables, and what several topics need of SQL.

The rows of commits are here too, since every topic reads them. Nothing here decides: a module
that knows what a row means for a user belongs to a topic.
"""
