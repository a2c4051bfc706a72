"""Data that is not committed: writes in progress, uploads, staged entries, released addresses.

The address of a file is in one of these tables before its first byte is written. It stays there
until a commit has the address, or the reclaimer has deleted the file.
"""
