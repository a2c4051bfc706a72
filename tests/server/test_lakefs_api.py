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

from tests.server.test_roles import DOCUMENTS, ROLE, ROLES, ROUTE, R
from tests.support.collected import refused
from tests.support.documents import with_whole_items

PAGE: Final = DOCUMENTS / "lakefs-api.md"
ITEM: Final = re.compile(rf"^- `(\w+)` {ROUTE} (?:{ROLE})(?:: (.+))?$", re.MULTILINE)
ABSENT: Final = re.compile(r"^- .+?: ((?:`\w+`(?:, )?)+)$", re.MULTILINE)
OPERATIONS: Final = 134
"""Of lakeFS 1.88."""
REFUSED: Final = (404, 405, 501)


TESTS: Final = {
    "test_client.py::test_configuration": (
        "getSetupState getCurrentUser healthCheck getConfig getLakeFSVersion "
        "getStorageConfig getGarbageCollectionConfig"
    ),
    "test_logins.py::test_a_login_by_lakefs_own_client": "login",
    "test_client.py::test_repositories": "listRepositories getRepository",
    "test_protection.py::test_metadata_of_repositories": (
        "getRepositoryMetadata setRepositoryMetadata deleteRepositoryMetadata"
    ),
    "test_protection.py::test_rules": "getBranchProtectionRules",
    "test_client.py::test_tags": "listTags getTag",
    "test_client.py::test_branches": "listBranches getBranch",
    "test_client.py::test_commits_and_log": "logCommits getCommit",
    "test_client.py::test_resets": "resetBranch",
    "test_client.py::test_reverts_and_picks": "revertBranch cherryPick",
    "test_client.py::test_merges": "findMergeBase",
    "test_client.py::test_differences": "diffBranch diffRefs",
    "test_client.py::test_objects": "headObject deleteObject copyObject statObject",
    "test_signed_parts.py::test_parts_become_an_object": "createPresignMultipartUpload uploadPart",
    "test_signed_parts.py::test_an_aborted_upload": "abortPresignMultipartUpload",
    "test_signed_parts.py::test_a_part_of_another_object": "uploadPartCopy",
    "test_client.py::test_uploads_past_the_server": "getPhysicalAddress linkPhysicalAddress",
    "test_imports.py::test_an_import": "importStatus importCancel",
    "test_client.py::test_listing": "deleteObjects listObjects",
    "test_protection.py::test_metadata_of_objects": "updateObjectUserMetadata",
    "test_collecting.py::test_commits_for_other_collectors": (
        "prepareGarbageCollectionCommitsStatus"
    ),
    "test_collecting.py::test_what_is_uncommitted_for_other_collectors": (
        "prepareGarbageCollectionUncommitted"
    ),
    "test_statuses.py::test_what_web_tools_read_first": "postStatsEvents",
}
"""The tests, by lakeFS's own clients, of the operations that are the same as in lakeFS."""


def shape(path: str) -> str:
    """A path whose parameters have no names: lakeFS names some of them differently."""
    return re.sub(r"\{[^}]*\}", "{}", path)


APIS: Final = [each for name, each in vars(lakefs_sdk).items() if name.endswith("Api")]


def calls() -> Iterator[tuple[str, type, str, str]]:
    """The calls of lakeFS's client: name, class, method and path."""
    for each in APIS:
        for name, method in inspect.getmembers(each, inspect.isfunction):
            if name.endswith("_with_http_info"):
                source = inspect.getsource(method)
                call = re.search(r"'(/[^']*)', '([A-Z]+)',\n *_path_params", source)
                assert call is not None, name
                yield name.removesuffix("_with_http_info"), each, call[2], call[1]


NOT_IN_THE_CLIENT: Final = {
    "getauthcapabilities": ("GET", "/auth/capabilities"),
    "setgroupacl": ("POST", "/auth/groups/{groupId}/acl"),
    "getgroupacl": ("GET", "/auth/groups/{groupId}/acl"),
    "oauthcallback": ("GET", "/oidc/callback"),
}
PLACES: Final = NOT_IN_THE_CLIENT | {
    name.replace("_", ""): (method, path) for name, _, method, path in calls()
}
"""Method and path of each operation, by its name in lower case."""


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Operation, method, path, what it does here, and the remark."""
    sections = dict(each.split("\n", 1) for each in with_whole_items(PAGE).split("\n## "))
    for heading, word in (("The same as in lakeFS", "works"), ("Different", "differs")):
        for name, method, short, path, remark in ITEM.findall(sections[heading]):
            yield name, method, (R if short else "") + path, word, remark
    for names in ABSENT.findall(sections["Absent"]):
        for name in re.findall(r"`(\w+)`", names):
            yield name, *PLACES[name.lower()], "absent", ""


ROWS: Final = list(rows())
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
    for name, each, method, path in calls():
        source = inspect.getsource(getattr(each, f"{name}_with_http_info"))
        names = set(re.findall(r"_query_params\.append\(\('(\w+)'", source))
        names |= set(re.findall(r"_header_params\['([\w-]+)'\] = _params", source))
        for parameter in inspect.signature(getattr(each, name)).parameters.values():
            names |= set(fields(parameter.annotation))
        found[method, shape(path)] = names
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
    assert len(ROWS) == OPERATIONS
    assert {name.lower() for name, *_ in ROWS} == set(PLACES)
    assert len({(method, shape(path)) for _, method, path, *_ in ROWS}) == OPERATIONS
    assert f"all {OPERATIONS} operations" in PAGE.read_text()


def test_what_is_said_of_each() -> None:
    """What has a route is not absent, and what has none is. What works has a test, and what differs
    says how."""
    routes = {(method, shape(path)) for method, path in ROLES}
    for name, method, path, word, remark in ROWS:
        assert ((method, shape(path)) in routes) == (word != "absent"), name
        assert remark or word != "differs", name
    tested = [name for names in TESTS.values() for name in names.split()]
    assert sorted(tested) == sorted(name for name, _, _, word, _ in ROWS if word == "works")
    for place in TESTS:
        file, _, test = place.partition("::")
        assert f"def {test}(" in Path(__file__).with_name(file).read_text(), place


def test_what_is_absent_is_refused(http: httpx.Client) -> None:
    """By name: all that lakectl shows of a refusal is the message."""
    absent = [(method, path) for _, method, path, word, _ in ROWS if word == "absent"]
    for method, path in (*absent, ("GET", "/repositories/lake/actions/runs/a%2Fb")):
        named = re.sub(r"\{[^}]*\}", "missing", path)
        answer = http.request(method, named, json={})
        assert answer.status_code in REFUSED, (path, answer.text)
        assert answer.json()["kind"] == "route_not_found", path
        assert f"has no {method} /api/v1{named}: " in answer.json()["message"]
