"""What the documents say of the server is so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.test_roles import ROLES

DOCUMENT = Path(__file__).parents[2] / "docs" / "server.md"


def test_the_table_of_routes() -> None:
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    found = {
        (
            method,
            path.replace("R/", "/repositories/{repository}/", 1) if path.startswith("R/") else path,
        ): role
        for method, path, role in rows
    }
    assert len(rows) == len(found)
    assert found == {(method, path): role for (method, path), role in ROLES.items()}
