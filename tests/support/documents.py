"""Reads documents, for the tests that compare their lists with the program."""

from __future__ import annotations

import re
from pathlib import Path


def with_whole_items(document: Path) -> str:
    """The text of a document, in which each item of a list stands on one line."""
    return re.sub(r"\n +(?=\S)", " ", document.read_text())
