"""The end of a process, for tests that stay in theirs."""

from __future__ import annotations


class Died(BaseException):
    """The process is gone: nothing that would be done about an error or an interrupt is done."""
