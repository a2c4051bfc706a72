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


def rows() -> list[tuple[str, str, str, str, str]]:
    """Operation, method, path, what it does here, and the remark."""
    return ROW.findall(PAGE.read_text())


def shape(path: str) -> str:
    """A path whose parameters have no names: lakeFS names some of them differently."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_every_operation_is_there_once() -> None:
    found = rows()
    assert len(found) == OPERATIONS == len(LISTED.findall(PAGE.read_text()))
    assert len({name for name, *_ in found}) == OPERATIONS
    assert len({(method, shape(path)) for _, method, path, *_ in found}) == OPERATIONS
    assert f"all {OPERATIONS} operations" in PAGE.read_text()


def test_what_has_a_route_is_not_absent_and_what_has_none_is() -> None:
    routes = {(method, shape(path)) for method, path in ROLES}
    for name, method, path, word, _ in rows():
        assert ((method, shape(path)) in routes) == (word != "absent"), name


def test_what_works_names_a_test() -> None:
    for name, _, _, word, remark in rows():
        assert remark.strip(), name
        if word == "works":
            named = re.fullmatch(r"`(test_\w+\.py): (test_\w+)`", remark)
            assert named is not None, name
            text = Path(__file__).with_name(named[1]).read_text()
            assert f"def {named[2]}(" in text, name


def test_what_is_absent_is_refused(http: httpx.Client) -> None:
    for name, method, path, word, _ in rows():
        if word == "absent":
            answer = http.request(method, re.sub(r"\{[^}]*\}", "missing", path), json={})
            assert answer.status_code in REFUSED, (name, answer.text)
            assert answer.json()["kind"] == "route_not_found", name
