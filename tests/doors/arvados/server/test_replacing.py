"""`replace_files` and `replace_segments` over HTTP: copies between collections, what protects their
data, writers at one time, and requests that are refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ebbtide.doors.arvados.store.manifests import EMPTY_BLOCK, parse_manifest
from ebbtide.ids import new_id
from ebbtide.store.access.access_keys import Role
from tests.doors.arvados.server.conftest import ArvadosServer
from tests.doors.arvados.server.test_keep import API, create, put, refused, unsigned


@pytest.fixture
def source(http: httpx.Client) -> dict[str, Any]:
    """A collection of the file `d/f`."""
    return create(http, f"./d {put(http, new_id()[:6].encode())} 0:6:f\n")


@pytest.fixture
def target(http: httpx.Client) -> dict[str, Any]:
    """A collection of the file `a`."""
    return create(http, f". {put(http, new_id()[:6].encode())} 0:6:a\n")


def paths(record: dict[str, Any]) -> set[str]:
    """The names in a manifest, one for each piece of a file."""
    return {
        f"{name}/{token.rpartition(':')[2]}"
        for name, *tokens in (line.split(" ") for line in record["manifest_text"].splitlines())
        for token in tokens
        if ":" in token
    }


def read(http: httpx.Client, record: dict[str, Any]) -> set[bytes]:
    blocks = parse_manifest(record["manifest_text"]).locators.values()
    return {http.get(f"/{each}").raise_for_status().content for row in blocks for each in row}


def test_copies_moves_and_deletes(
    http: httpx.Client, source: dict[str, Any], target: dict[str, Any]
) -> None:
    """What was copied is kept."""
    url = f"{API}/{target['uuid']}"
    wanted = read(http, source) | read(http, target)
    files = {"/a": "", "/b": "current/a", "/copy": f"{source['portable_data_hash']}/d"}
    changed = http.put(url, json={"replace_files": files}).json()
    assert paths(changed) == {"./b", "./copy/f"}
    assert (changed["file_count"], changed["file_size_total"]) == (2, 12)
    http.delete(f"{API}/{source['uuid']}").raise_for_status()
    found = http.get(url).json()
    assert unsigned(changed) == unsigned(found)
    assert read(http, found) == wanted
    given = {
        "collection": {"name": new_id()[:8]},
        "replace_files": {"/": changed["portable_data_hash"]},
    }
    made = http.post(API, json=given).json()
    assert made["portable_data_hash"] == changed["portable_data_hash"]
    # Parameters also come as JSON in a form, as the Ruby client sends them.
    form = {"replace_files": '{"/": ""}', "collection": '{"description": "empty"}'}
    emptied = http.put(f"{API}/{made['uuid']}", data=form).json()
    assert (emptied["manifest_text"], emptied["description"]) == ("", "empty")


def test_sources_that_cannot_be_read(
    http: httpx.Client, source: dict[str, Any], target: dict[str, Any]
) -> None:
    url, portable = f"{API}/{target['uuid']}", source["portable_data_hash"]
    http.delete(f"{API}/{source['uuid']}").raise_for_status()
    for name in (portable, f"{'0' * 32}+9"):
        request = {"replace_files": {"/x": f"{name}/d"}}
        refused(http.put(url, json=request), 404, "collection_not_found")
        refused(http.post(API, json=request), 404, "collection_not_found")
    assert http.get(url).json()["version"] == target["version"], "nothing changed"
    http.delete(url).raise_for_status()
    gone = {"include_trash": True, "replace_files": {"/x": "current/a"}}
    refused(http.put(url, json=gone), 404, "collection_not_found")


def test_bad_requests(http: httpx.Client, target: dict[str, Any]) -> None:
    url = f"{API}/{target['uuid']}"
    text = {"manifest_text": f". {EMPTY_BLOCK} 0:0:a\n"}
    bodies: tuple[dict[str, Any], ...] = (
        {"replace_files": {"/x": None}},
        {"replace_files": "no json"},
        {"replace_segments": {"x": "y"}},
        {"collection": text, "replace_files": {"/x": ""}},
    )
    for body in bodies:
        refused(http.put(url, json=body), 422, "invalid_argument")
        refused(http.post(API, json=body), 422, "invalid_argument")
    assert http.get(url).json()["version"] == target["version"], "nothing changed"


def test_segments_are_replaced(http: httpx.Client) -> None:
    """None of a block, if one of its pieces is not there."""
    one, two, both = (put(http, data) for data in (b"one", b"two", b"onetwo"))
    made = create(http, f". {one} 0:3:a\n./d {two} 0:3:b\n")
    url = f"{API}/{made['uuid']}"
    segments = {f"{one} 0 3": f"{both} 0 3", f"{two} 0 2": f"{both} 3 2"}
    left = http.put(url, json={"replace_segments": segments}).json()
    assert left["portable_data_hash"] == made["portable_data_hash"]
    segments = {f"{one} 0 3": f"{both} 0 3", f"{two} 0 3": f"{both} 3 3"}
    changed = http.put(url, json={"replace_segments": segments}).json()
    block = both.split("+E")[0]
    wanted = f". {block} 0:3:a\n./d {block} 3:3:b\n"
    assert parse_manifest(changed["manifest_text"]).text == wanted
    assert read(http, changed) == {b"onetwo"}


def test_signatures_of_what_is_given_are_checked(
    arvados: ArvadosServer, http: httpx.Client, target: dict[str, Any]
) -> None:
    """Neither a manifest nor a segment brings in a block that the key was not given."""
    url = f"{API}/{target['uuid']}"
    with arvados.http(Role.WRITER) as other:
        foreign = put(other, b"secrets")
    request: dict[str, Any] = {
        "collection": {"manifest_text": f". {foreign} 0:7:s\n"},
        "replace_files": {"/x": "manifest_text/s"},
    }
    refused(http.put(url, json=request), 422, "token_invalid")
    own = next(iter(parse_manifest(target["manifest_text"]).locators.values()))[0]
    segments = {f"{own} 0 6": f"{foreign} 0 6"}
    refused(http.put(url, json={"replace_segments": segments}), 422, "token_invalid")
    with arvados.http(Role.READER) as reader:
        refused(reader.put(url, json={"replace_files": {"/": ""}}), 403, "role_missing")
