"""Purges of collections that clients of Arvados made, by the ids that these clients know."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx

from ebbtide.ids import new_id
from tests.doors.arvados.server.conftest import ArvadosServer
from tests.doors.arvados.server.test_keep import API, create, put, refused
from tests.doors.arvados.server.test_replacing import read
from tests.support.arvados import md5

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Pair:
    """Two collections, each with a block of its own, and with one that both have."""

    def __init__(self, http: httpx.Client) -> None:
        self.own, self.shared, self.other = (new_id().encode() for _ in range(3))
        self.locators = {data: put(http, data) for data in (self.own, self.shared, self.other)}
        self.first = create(http, self._text(self.own, self.shared))
        self.second = create(http, self._text(self.shared, self.other))

    def _text(self, *blocks: bytes) -> str:
        locators = " ".join(self.locators[data] for data in blocks)
        return f". {locators} 0:{sum(map(len, blocks))}:file\n"


def block(data: bytes) -> str:
    """A block as a path of a collection."""
    return f"{md5(data)}+{len(data)}"


def ebbtide(arvados: ArvadosServer, *arguments: str, code: int = 0) -> Any:
    """What a command of the store's administrator prints as JSON."""
    done = arvados.server.command(*arguments, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def purge(arvados: ArvadosServer, *names: str, keeps: bool = False, code: int = 0) -> Any:
    targets = [f"--collection={name}" for name in names] + ["--keep-shared"] * keeps
    options = ("--reason", "a subject asked for it", "--yes-i-mean", "lake")
    return ebbtide(arvados, "purge", "run", "lake", *targets, *options, code=code)


def test_a_block_that_another_collection_has(arvados: ArvadosServer, http: httpx.Client) -> None:
    """It prevents the purge of the first collection, and the report names the second. On request
    it stays, and the report says why, and until when signatures would have lasted."""
    pair = Pair(http)
    found = purge(arvados, pair.first["uuid"], code=3)
    assert found["error"]["kind"] == "purge_in_use"
    (reference,) = found["references"]
    assert (reference["kind"], reference["names"][-1]) == ("collection", pair.second["uuid"])
    assert (reference["entry_count"], reference["examples"]) == (1, [block(pair.shared)])
    first, second = (f"{API}/{each['uuid']}" for each in (pair.first, pair.second))
    assert read(http, http.get(first).json()) == {pair.own, pair.shared}
    assert "blocked by" in arvados.server.command("purge", "show", found["purge_id"]).stdout
    done = purge(arvados, pair.first["uuid"], keeps=True)
    assert (done["state"], done["outcomes"]) == ("done", {"deleted": 2})
    assert (done["kept_count"], done["kept_bytes"]) == (1, len(pair.shared))
    (reference,) = done["kept_references"]
    assert reference["names"][-1] == pair.second["uuid"]
    assert datetime.fromisoformat(done["promised_until"]) > LONG_AGO
    shown = arvados.server.command("purge", "show", done["purge_id"]).stdout
    for words in ("needed by", pair.second["uuid"], "which other data needs", "signatures"):
        assert words in shown, shown
    assert ebbtide(arvados, "purge", "verify", done["purge_id"])["verified"] is True

    assert read(http, http.get(second).json()) == {pair.shared, pair.other}, "whole"
    assert http.get(f"/{pair.locators[pair.shared]}").content == pair.shared
    refused(http.get(f"/{pair.locators[pair.own]}"), 410, "purged")
    refused(http.get(first), 410, "purged")
    reused = {"manifest_text": f". {pair.locators[pair.own]} 0:1:f\n"}
    refused(http.post(API, json=reused), 410, "purged")
    assert http.delete(first).json()["is_trashed"] is True


def test_both_collections_are_named(arvados: ArvadosServer, http: httpx.Client) -> None:
    """One by its portable data hash, and one by its id, from the trash."""
    pair = Pair(http)
    http.delete(f"{API}/{pair.second['uuid']}").raise_for_status()
    again = put(http, pair.own)
    done = purge(arvados, pair.first["portable_data_hash"], pair.second["uuid"])
    assert (done["state"], done["outcomes"], done["kept_count"]) == ("done", {"deleted": 5}, 0)
    refused(http.get(f"/{again}"), 410, "purged")
    assert http.get(f"/{put(http, pair.own)}").content == pair.own, "it can be written again"


def test_explain_and_the_commands_of_collections(
    arvados: ArvadosServer, http: httpx.Client
) -> None:
    """By id, path, and a hash that one collection alone has."""
    pair = Pair(http)
    uuid, pdh = pair.first["uuid"], pair.first["portable_data_hash"]
    path = ebbtide(arvados, "collection", "show", "lake", uuid)["path"]
    for name in (uuid, pdh, path):
        found = ebbtide(arvados, "explain", "lake", name, block(pair.own))
        assert (found["state"], found["kept_by"]) == ("kept", f"collection {path}")
    commit = ebbtide(arvados, "explain", "lake", pdh)
    assert [each["name"] for each in commit["refs"]] == [path]
    files = ebbtide(arvados, "collection", "files", "lake", pdh)
    assert block(pair.shared) in json.dumps(files)
    missing = ebbtide(arvados, "explain", "lake", f"{uuid[:-5]}00000", code=1)
    assert missing["error"]["kind"] == "ref_not_found"
    copy = create(http, pair.first["manifest_text"])
    several = purge(arvados, pdh, code=1)["error"]
    assert several["kind"] == "ref_ambiguous"
    assert all(each["uuid"] in several["message"] for each in (copy, pair.first))
