"""Compares the output that a document shows with what its commands print. Not for the commands."""

from __future__ import annotations

import re
from typing import Final

_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CHANGING: Final = (
    (re.compile(r"\bEBBT[A-Z0-9]{16}\b"), "KEY"),
    (re.compile(r"(secret access key) +\S+"), r"\1 SECRET"),
    (re.compile(r"/\S*/store\b"), "STORE"),
    (re.compile(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{10}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?\b"), "TIME"),
    (re.compile(r"\b\d+ (second|minute|hour|day|month|year)s?\b"), "AGE"),
    (re.compile(r"\b\d+(\.\d+)? ([KMG]i)?B\b"), "SIZE"),
    (re.compile(r"\b\d+(,\d{3})*\b"), "N"),
    (re.compile(r"\s+"), " "),
)


def masked(line: str) -> str:
    """A line without what differs in each run: identifiers, times, sizes and numbers."""
    for pattern, replacement in _CHANGING:
        line = pattern.sub(replacement, line)
    return line.strip()


def unprinted(document: str, output: str) -> list[str]:
    """The lines of the document's output, in blocks without a language, that are not in `output`.
    A line with an ellipsis stands for others."""
    printed = {masked(line) for line in output.splitlines()}
    shown = [
        line
        for language, block in _BLOCK.findall(document)
        if not language
        for line in block.splitlines()
        if line.strip() and "…" not in line
    ]
    return [line for line in shown if masked(line) not in printed]
