"""What was written and is not committed: writes, uploads, staged entries, released addresses.

Every address of a file is in one of these tables from before its first byte until a commit has it,
or the reclaimer.
"""
