"""What the page on lakeFS's API says of each operation is so. What lakeFS's clients can send is
read, refused, or known to change nothing: every parameter and field of lakeFS's own client, against
what the server reads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import httpx
import lakefs
import lakefs_sdk
from pydantic.v1 import BaseModel

from tests.server.test_roles import DOCUMENTS, ROLES
from tests.support.collected import refused

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


APIS: Final = [each for name, each in vars(lakefs_sdk).items() if name.endswith("Api")]
BY_HEADER: Final = {"If-None-Match", "If-Match", "Range"}
"""Headers that handlers read from the request: tests of conditions and ranges use them."""

Operation = tuple[str, str]
"""Method, and path with `{}` for each parameter."""


def fields(found: object) -> Iterator[str]:
    if isinstance(found, type) and issubclass(found, BaseModel):
        for each in found.__fields__.values():
            yield each.alias
            yield from fields(each.type_)
    for inner in get_args(found):
        yield from fields(inner)


def sent() -> dict[Operation, set[str]]:
    """What lakeFS's client can send besides the path, by operation."""
    found: dict[Operation, set[str]] = {}
    for each in APIS:
        for name, method in inspect.getmembers(each, inspect.isfunction):
            if not name.endswith("_with_http_info"):
                continue
            source = inspect.getsource(method)
            call = re.search(r"'(/[^']*)', '([A-Z]+)',\n *_path_params", source)
            assert call is not None, name
            names = set(re.findall(r"_query_params\.append\(\('(\w+)'", source))
            names |= set(re.findall(r"_header_params\['([\w-]+)'\] = _params", source))
            plain = inspect.signature(getattr(each, name.removesuffix("_with_http_info")))
            for parameter in plain.parameters.values():
                names |= set(fields(parameter.annotation))
            found[call[2], shape(call[1])] = names
    return found


def read(document: dict[str, Any]) -> dict[Operation, set[str]]:
    """What the server's description says that it reads, by operation."""
    found: dict[Operation, set[str]] = {}
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            names = {each["name"] for each in described.get("parameters", ())}
            body = described.get("requestBody", {}).get("content", {})
            for content in body.values():
                names |= set(within(document, content.get("schema", {})))
            found[method.upper(), shape(path.removeprefix("/api/v1"))] = names
    return found


def within(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    for name, inner in schema.get("properties", {}).items():
        yield name
        yield from within(document, inner)
    for inner in (*schema.get("anyOf", ()), schema.get("items", {})):
        if inner:
            yield from within(document, inner)


def told() -> set[tuple[str, str]]:
    section = PAGE.read_text().partition("## Parameters and fields")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+? \|$", section, re.MULTILINE)
    return {
        (operation.strip("`"), name)
        for operations, names in rows
        for operation in operations.split(", ")
        for name in re.findall(r"`([\w-]+)`", names)
    }


def test_every_parameter_and_field_of_lakefs_is_read_or_told(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    present = read(document)
    names = {(method, shape(path)): operation for operation, method, path, *_ in ROWS}
    known = told()
    silent = {
        (names[operation], field)
        for operation, given in sent().items()
        if operation in present
        for field in given - present[operation] - BY_HEADER
        if ("all", field) not in known and (names[operation], field) not in known
    }
    assert len(set(present) & set(sent())) > 60
    assert silent == set()


def test_what_is_not_supported(http: httpx.Client, lake: lakefs.Repository) -> None:
    """A shallow copy, and the date of an import's commit."""
    lake.branch("main").object("a").upload("a")
    place = f"/repositories/{lake.id}/branches/main"
    for value, status in ((True, 501), (False, 201)):
        asked: dict[str, Any] = {"src_path": "a", "shallow": value}
        answer = http.post(f"{place}/objects/copy", params={"dest_path": "b"}, json=asked)
        assert answer.status_code == status, answer.text
        assert lake.branch("main").object("b").exists() is not value
        assert not value or "shallow" in refused(answer, 501, "not_supported")["message"]
    paths = [{"type": "object", "path": "s3://elsewhere/a", "destination": "a"}]
    asked = {"paths": paths, "commit": {"message": "m", "date": 1}}
    refused(http.post(f"{place}/import", json=asked), 501, "not_supported")


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
