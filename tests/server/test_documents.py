"""What the documents say of the server is so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.test_roles import ROLES, R

DOCUMENT = Path(__file__).parents[2] / "docs" / "server.md"


def test_the_table_of_routes() -> None:
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| `([A-Z]+) (R?)(/?\S*)` \| (\w+) \|", text, re.MULTILINE)
    found = {(method, (R if short else "") + path): role for method, short, path, role in rows}
    assert len(rows) == len(found)
    assert found == ROLES
