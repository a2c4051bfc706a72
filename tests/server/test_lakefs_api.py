"""The page that lists the operations of lakeFS's API: what it says of each is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import httpx

from tests.server.test_roles import DOCUMENTS, ROLES

PAGE: Final = DOCUMENTS / "lakefs-api.md"
ROW: Final = re.compile(
    r"^\| `(\w+)` \| `([A-Z]+) (/\S+)` \| (works|differs|absent) \| (.+) \|$", re.MULTILINE
)
LISTED: Final = re.compile(r"^\| `[^|]*\| `[A-Z]+ /", re.MULTILINE)
"""The beginning of each row of an operation, whatever its other columns are."""
OPERATIONS: Final = 134
"""Of lakeFS 1.88."""
REFUSED: Final = (404, 405, 501)


ROWS: Final[list[tuple[str, str, str, str, str]]] = ROW.findall(PAGE.read_text())
"""Operation, method, path, what it does here, and the remark."""


def shape(path: str) -> str:
    """A path whose parameters have no names: lakeFS names some of them differently."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_every_operation_is_there_once() -> None:
    assert len(ROWS) == OPERATIONS == len(LISTED.findall(PAGE.read_text()))
    assert len({name for name, *_ in ROWS}) == OPERATIONS
    assert len({(method, shape(path)) for _, method, path, *_ in ROWS}) == OPERATIONS
    assert f"all {OPERATIONS} operations" in PAGE.read_text()


def test_what_is_said_of_each() -> None:
    """What has a route is not absent, and what has none is. What works names a test."""
    routes = {(method, shape(path)) for method, path in ROLES}
    for name, method, path, word, remark in ROWS:
        assert ((method, shape(path)) in routes) == (word != "absent"), name
        assert remark.strip(), name
        if word == "works":
            named = re.fullmatch(r"`(test_\w+\.py): (test_\w+)`", remark)
            assert named is not None, name
            text = Path(__file__).with_name(named[1]).read_text()
            assert f"def {named[2]}(" in text, name


def test_what_is_absent_is_refused(http: httpx.Client) -> None:
    """By name: all that lakectl shows of a refusal is the message."""
    absent = [(method, path) for _, method, path, word, _ in ROWS if word == "absent"]
    for method, path in (*absent, ("GET", "/repositories/lake/actions/runs/a%2Fb")):
        named = re.sub(r"\{[^}]*\}", "missing", path)
        answer = http.request(method, named, json={})
        assert answer.status_code in REFUSED, (path, answer.text)
        assert answer.json()["kind"] == "route_not_found", path
        assert f"has no {method} /api/v1{named}: " in answer.json()["message"]
