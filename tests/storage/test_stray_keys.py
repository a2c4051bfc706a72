"""Objects of a bucket whose keys are no addresses: they are listed, and hide nothing."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from obstore.exceptions import InvalidPathError

from ebbtide.errors import Failed
from ebbtide.ids import new_id
from ebbtide.storage import (
    LISTING_SCHEMA,
    RemoteStorage,
    Storage,
    base,
    clients,
    open_storage,
    requests,
)
from tests.support.errors import raises
from tests.support.stray import STRAY, put_key

KEYS_PER_PAGE = 1000
"""Of S3."""
PLAIN = ("a/c", "é b+c", "folder/x", "last", "seed/x")


@pytest.fixture
def storage(s3_url: str) -> Storage:
    storage = open_storage(f"{s3_url}/{new_id()}/b+é c")
    for address in PLAIN:
        storage.put(address, b"plain")
    return storage


def found(
    storage: Storage, prefix: str = "", *, recursive: bool = True, streamed: bool = False
) -> dict[str, bool]:
    """What is listed, and whether it is regular; nothing is listed twice."""
    rows: list[tuple[str, bool]] = []
    for batch in storage.list(prefix, recursive=recursive, streamed=streamed):
        assert batch.schema.equals(LISTING_SCHEMA)
        batch.validate(full=True)
        assert batch.column("size_bytes").to_pylist() == [5] * batch.num_rows
        assert not batch.column("last_modified").null_count
        rows += ((row["address"], row["regular"]) for row in batch.to_pylist())
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def walked(storage: Storage, prefix: str = "") -> dict[str, bool]:
    """The same, one directory at a time, as the collector lists."""
    rows = found(storage, prefix, recursive=False)
    for inner in storage.list_prefixes(prefix):
        below = walked(storage, inner)
        assert not rows.keys() & below.keys()
        rows |= below
    return rows


def test_stray_keys_are_listed_and_not_regular(storage: Storage) -> None:
    for key in STRAY:
        put_key(storage.url, key)
    expected = dict.fromkeys(STRAY, False) | dict.fromkeys(PLAIN, True)
    assert found(storage) == expected
    assert walked(storage) == expected


def test_a_stray_key_behind_the_first_page(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that has begun goes on behind what it has, page by page."""
    monkeypatch.setattr(base, "LISTING_ROWS_MAX", 300)
    storage = open_storage(f"{s3_url}/{new_id()}")
    names = [f"a/{number:04}" for number in range(KEYS_PER_PAGE + 1)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.put(name, b"plain"), names))
    within, behind = f"a/{KEYS_PER_PAGE - 1:04}//x", "b//x"
    put_key(storage.url, behind)
    expected = dict.fromkeys(names, True) | {behind: False}
    assert found(storage, streamed=True) == expected
    put_key(storage.url, within)
    assert found(storage, "a/") == dict.fromkeys(names, True) | {within: False}
    expected[within] = False
    assert found(storage, streamed=True) == expected
    assert found(storage) == expected


@pytest.mark.drawn("stray keys")
@pytest.mark.parametrize("key", STRAY)
def test_one_stray_key_hides_nothing(storage: Storage, key: str) -> None:
    put_key(storage.url, key)
    for rows in (found(storage), walked(storage)):
        assert {name for name, regular in rows.items() if regular} >= set(PLAIN)
        assert len(rows) == len(PLAIN) + 1


def test_a_key_that_ends_in_a_slash_is_not_the_object_without_it(storage: Storage) -> None:
    """Whether that is there or not, at any depth. Nor is the key of the root itself regular."""
    slashed = ("folder/x/", "seed/y/", "deep/er/z/", "top/")
    expected = dict.fromkeys(PLAIN, True)
    for more in (slashed, ["seed//x"]):  # alone, and beside a stray key
        for key in more:
            put_key(storage.url, key)
        expected |= dict.fromkeys(more, False)
        assert found(storage) == walked(storage) == expected
        below = {n: r for n, r in expected.items() if n.startswith("seed/")}
        assert found(storage, "seed/") == below
        assert found(storage, "deep/") == {"deep/er/z/": False}
    put_key(storage.url, "")
    assert found(storage) == expected | {"/": False}


class StrayClient:
    """A client of a storage with a key that is no address, as obstore answers for it."""

    def list_with_delimiter(self, prefix: str | None, *, return_arrow: bool) -> None:
        del prefix, return_arrow
        raise InvalidPathError('Path "seed//x" contained empty path segment')


@pytest.mark.parametrize("url", ["az://container/root", "az://container"])
def test_other_storages_name_the_stray_key_and_say_what_to_do(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "connect", lambda *_, **__: StrayClient())
    storage = RemoteStorage(url)
    told = (f"{url}/a/", "seed//x", "Nothing was deleted", "is not needed")
    for listing in (lambda: found(storage, "a/"), lambda: storage.list_prefixes("a/")):
        with raises("storage_error", *told, of=Failed):
            listing()


def test_options_take_the_place_of_the_environment(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_key(storage.url, "seed//x")
    options = {"aws_endpoint": "AWS_ENDPOINT", "access_key_id": "AWS_ACCESS_KEY_ID"}
    options |= {"AWS_SECRET_ACCESS_KEY": "AWS_SECRET_ACCESS_KEY", "allow_http": "AWS_ALLOW_HTTP"}
    given = {name: os.environ[variable] for name, variable in options.items()}
    for variable in options.values():
        monkeypatch.delenv(variable)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert found(open_storage(storage.url, given))["seed//x"] is False


def test_a_listing_by_keys_that_fails_is_a_failure_of_the_storage(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_key(storage.url, "seed//x")

    def refused(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(requests, "urlopen", refused)
    # Not in the module itself, which threads that other tests left behind use too.
    monkeypatch.setattr(requests, "time", SimpleNamespace(sleep=lambda _: None))
    with raises("storage_error", "no route to host", of=Failed):
        found(storage)
