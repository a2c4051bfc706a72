"""Blocks and collections over HTTP: what clients send, and what they must not get."""

from __future__ import annotations

import re
from typing import Any

import httpx

from ebbtide.doors.arvados.store.manifests import EMPTY_BLOCK, parse_manifest
from ebbtide.ids import new_id
from ebbtide.store.access.access_keys import Role
from tests.doors.arvados.server.conftest import ArvadosServer
from tests.support.arvados import manifest_of, md5

API = "/arvados/v1/collections"


def put(http: httpx.Client, data: bytes) -> str:
    answer = http.put(f"/{md5(data)}", content=data, headers={"X-Keep-Desired-Replicas": "2"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Keep-Replicas-Stored"] == "1"
    assert answer.headers["X-Keep-Storage-Classes-Confirmed"] == "default=1"
    return answer.text.removesuffix("\n")


def create(http: httpx.Client, text: str, **fields: Any) -> dict[str, Any]:
    fields = {"name": new_id()[:8], "manifest_text": text} | fields
    answer = http.post(API, json={"collection": fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def unsigned(record: dict[str, Any]) -> dict[str, Any]:
    """A collection without signatures of its blocks: each reading has those of its second."""
    return record | {"manifest_text": parse_manifest(record["manifest_text"]).text}


def refused(answer: httpx.Response, status: int, kind: str) -> None:
    assert (answer.status_code, answer.json()["kind"]) == (status, kind), answer.text
    (message,) = answer.json()["errors"]
    assert message


def test_a_block(http: httpx.Client) -> None:
    """A locator has the size, then hints that begin with letters, then a signature of 40
    hexadecimal digits, and the expiry in 8."""
    data = b"x" * 3_000_000
    locator = put(http, data)
    form = r"[0-9a-f]{32}\+3000000(\+[B-Z][A-Za-z0-9@_-]+)*\+A[0-9a-f]{40}@[0-9a-f]{8}"
    assert re.fullmatch(form, locator)
    answer = http.get(f"/{locator}")
    assert (answer.status_code, answer.content) == (200, data)
    answer = http.head(f"/{locator}")
    assert (answer.status_code, answer.headers["content-length"]) == (200, "3000000")
    assert put(http, data).split("+")[2] == locator.split("+")[2], "one object"
    assert put(http, b"") == EMPTY_BLOCK
    assert http.get(f"/{EMPTY_BLOCK}").content == b""


def test_blocks_that_are_refused(arvados: ArvadosServer, http: httpx.Client) -> None:
    refused(http.put(f"/{md5(b'x')}", content=b"y"), 422, "checksum_mismatch")
    locator = put(http, b"x")
    refused(http.get(f"/{md5(b'x')}+1"), 403, "token_invalid")
    refused(http.get(f"/{locator[:-1]}"), 403, "token_truncated")
    with arvados.http(Role.READER) as reader:
        refused(reader.put(f"/{md5(b'x')}", content=b"x"), 403, "role_missing")
        refused(reader.get(f"/{locator}"), 403, "token_invalid")
    with arvados.http(None) as nobody:
        refused(nobody.get(f"/{locator}"), 401, "key_invalid")


def test_a_collection(arvados: ArvadosServer, http: httpx.Client) -> None:
    data = new_id()[:4].encode()  # no other test has the same hash
    text = manifest_of(put(http, data))
    made = create(http, text, properties={"a": [1]}, description="d")
    assert made["portable_data_hash"] == parse_manifest(text).portable_data_hash
    assert (made["file_count"], made["file_size_total"], made["version"]) == (1, 4, 1)
    with arvados.http(Role.READER) as reader:
        for name in (made["uuid"], made["portable_data_hash"]):
            found = reader.get(f"{API}/{name}").json()
            assert found["uuid"] == made["uuid"]
            (locator,) = parse_manifest(found["manifest_text"]).locators.popitem()[1]
            assert reader.get(f"/{locator}").content == data, "signed for the reader"
        refused(reader.delete(f"{API}/{made['uuid']}"), 403, "role_missing")
    url, given = f"{API}/{made['uuid']}", {"manifest_text": "", "name": new_id()[:8]}
    changed = http.put(url, json={"collection": given}).json()
    assert changed["portable_data_hash"] == EMPTY_BLOCK
    assert changed["properties"] == made["properties"]
    refused(http.put(url, json={"manifest_text": "x\n"}), 422, "invalid_manifest")


def test_the_trash(http: httpx.Client) -> None:
    text = manifest_of(put(http, b"data"))
    made = create(http, text)
    url = f"{API}/{made['uuid']}"
    assert http.delete(url).json()["is_trashed"] is True
    refused(http.get(url), 404, "collection_not_found")
    refused(http.get(f"{API}/{new_id()}+3"), 404, "collection_not_found")
    found = http.get(url, params={"include_trash": "true"}).json()
    assert "manifest_text" not in found
    assert found["unsigned_manifest_text"] == parse_manifest(text).text
    unique = {"ensure_unique_name": "true"}
    taken = {"collection": {"name": create(http, text, name=made["name"])["name"]}}
    assert http.post(API, json=taken).status_code == 422
    assert http.post(f"{url}/untrash").status_code == 422
    assert http.post(API, params=unique, json=taken).json()["name"] == f"{made['name']} (2)"
    restored = http.post(f"{url}/untrash", params=unique).json()
    assert restored["name"] == f"{made['name']} (3)"
