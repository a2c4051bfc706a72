"""The metadata database: its connections, its tables, and SQL that several packages use.

The rows of commits are here too, because all packages of the store read them. Modules here make no
decisions: a module that knows the meaning of a row for users belongs to another package.
"""
