"""Answers of a storage that are not whole, or not of the right kind: none of them passes for a
shorter listing, for an object, or for a delete.
"""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Final
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree

import pytest

from ebbtide.arrow import texts
from ebbtide.errors import Conflict, EbbtideError, Failed, Refused
from ebbtide.formats.icechunk.refs import read_refs
from ebbtide.ids import new_id
from ebbtide.storage import RemoteStorage, Storage, clients, deletes, open_storage, requests
from ebbtide.storage.external import list_external
from ebbtide.storage.requests import _deletion
from tests.support.answers import Answer, answering, s3_at
from tests.support.errors import raises
from tests.support.proxy import Proxy, proxied
from tests.support.randomized import randomized

Cut = Callable[[bytes], bytes]

HTML: Final = b"<html><head><title>Sign in</title></head><body><p>Sign in</p></body></html>"
KEYS: Final = sorted(
    [f"refs/branch.{name}/ref.json" for name in ("main", "dev", "zdev")]
    + [f"flat/{number}" for number in range(7)]
    + [f"data/{slice_}/{name}" for slice_ in "abc" for name in "xyz"]
)
"""Refs of Icechunk, a flat directory, and a few directories."""
PAGE_ROWS: Final = 3
SNAPSHOT: Final = b'{"snapshot":"1CECHNKREP0F1RSTCMT0"}'


def _without_entries(body: bytes) -> bytes:
    """The first entry alone, with the signs of the rest."""
    entry = rb"<(?:Contents|CommonPrefixes)>.*?</(?:Contents|CommonPrefixes)>"
    first = True

    def keep(found: re.Match[bytes]) -> bytes:
        nonlocal first
        kept, first = (found[0] if first else b""), False
        return kept

    return re.sub(entry, keep, body, flags=re.DOTALL)


def _without_token(body: bytes) -> bytes:
    return re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", body)


def _truncated(body: bytes) -> bytes:
    """What a server of version 1 alone answers: there is more, and no token."""
    whole = b"<IsTruncated>false"
    return _without_token(_without_entries(body)).replace(whole, b"<IsTruncated>true")


def _ended(body: bytes) -> bytes:
    return _without_token(body).replace(b"<IsTruncated>true", b"<IsTruncated>false")


CUTS: Final[dict[str, Cut]] = {
    "no token": _truncated,
    "no token, all keys": lambda body: _without_token(body).replace(
        b"<IsTruncated>false", b"<IsTruncated>true"
    ),
    "html": lambda _: HTML,
    "html that is no xml": lambda _: b"<!DOCTYPE html><html><br><p>Sign in</html>",
    "an error": lambda _: b"<Error><Code>InternalError</Code></Error>",
    "another document": lambda _: b"<ListAllMyBucketsResult/>",
    "another document that is whole": lambda _: b"<html><IsTruncated>false</IsTruncated></html>",
    "an empty listing": lambda _: b"<ListBucketResult></ListBucketResult>",
    "json": lambda _: b'{"message": "Sign in"}',
    "nothing": lambda _: b"",
    "half": lambda body: body[: len(body) // 2],
    "without its end": lambda body: body[:-8],
}


class Server:
    """A bucket of S3 with short pages. `spoiling` is called with each listing, `cut` with refs."""

    def __init__(self) -> None:
        self.spoiling: Cut = bytes
        self.cut: Cut = bytes
        self.is_length_kept = False

    def __call__(self, method: str, path: str) -> Answer:
        asked = dict(parse_qsl(urlsplit(path).query, keep_blank_values=True))
        if "list-type" in asked:
            return 200, self.spoiling(_page(asked)), {}
        length = {"content-length": str(len(SNAPSHOT))} if self.is_length_kept else {}
        return _object(method, 200, self.cut(SNAPSHOT), length)


def _object(method: str, status: int, body: bytes, told: dict[str, str]) -> Answer:
    headers = {"Last-Modified": "Sat, 01 Nov 2025 10:00:00 GMT", "ETag": '"a"', **told}
    if method == "HEAD":
        headers["content-length"] = "1000"
    return status, body, headers


def _page(asked: dict[str, str]) -> bytes:
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "\n")
    rows = dict.fromkeys(
        prefix + "".join(key.removeprefix(prefix).partition(delimiter)[:2])
        for key in KEYS
        if key.startswith(prefix)
    )
    after = asked.get("continuation-token", asked.get("start-after", ""))
    left = [row for row in rows if row > after]
    page, is_cut = left[:PAGE_ROWS], len(left) > PAGE_ROWS
    entries = "".join(
        f"<CommonPrefixes><Prefix>{row}</Prefix></CommonPrefixes>"
        if row.endswith(delimiter)
        else f"<Contents><Key>{row}</Key><LastModified>2025-11-01T10:00:00.000Z</LastModified>"
        f'<ETag>"a"</ETag><Size>{len(SNAPSHOT)}</Size></Contents>'
        for row in page
    )
    token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if is_cut else ""
    return (
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{str(is_cut).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>"
        f"{token}{entries}</ListBucketResult>"
    ).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Waits of its clients end at once."""
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=lambda: 0.0)
    for module in (requests, deletes):
        monkeypatch.setattr(module, "time", clock)
    return Server()


@pytest.fixture
def storage(server: Server) -> Iterator[Storage]:
    with answering(server) as endpoint:
        yield s3_at(endpoint)


def _walked(storage: Storage, prefix: str = "") -> list[str]:
    """All files, as the collector's layouts list them: level by level."""
    here = [name for batch in storage.list(prefix, recursive=False) for name in texts(batch[0])]
    return here + [
        name for part in storage.list_prefixes(prefix) for name in _walked(storage, part)
    ]


def _listed(storage: Storage, prefix: str = "", *, streamed: bool = False) -> list[str]:
    batches = storage.list(prefix, streamed=streamed)
    return sorted(name for batch in batches for name in texts(batch[0]))


WAYS: Final[dict[str, Callable[[Storage], object]]] = {
    "directories": _listed,
    "streamed": lambda storage: _listed(storage, streamed=True),
    "level by level": lambda storage: sorted(_walked(storage)),
    "prefixes": lambda storage: storage.list_prefixes("refs/"),
    "a long directory": lambda storage: _listed(storage, "flat/"),
    "refs": lambda storage: [ref.name for ref in read_refs(storage)],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_listing_that_is_cut_off_is_an_error(
    server: Server, storage: Storage, way: str, subtests: pytest.Subtests
) -> None:
    """On every page, and for as long as a proxy cuts."""
    assert WAYS[way](storage)
    for name, cut in CUTS.items():
        server.spoiling = cut
        with subtests.test(cut=name), raises("storage_error", of=Failed):
            WAYS[way](storage)


@pytest.mark.parametrize("way", ["prefixes", "refs", "level by level"])
def test_fewer_keys_than_an_answer_counts_are_an_error(
    server: Server, storage: Storage, way: str
) -> None:
    server.spoiling = _without_entries
    with pytest.raises(Failed, match="KeyCount"):
        WAYS[way](storage)


def test_a_page_that_is_cut_once_loses_nothing(server: Server, storage: Storage) -> None:
    """Each answer of the listing is cut in turn. It is whole, or fails."""
    way = "streamed"  # the only way in which an answer is not asked for again
    expected = WAYS[way](storage)
    for cut in (*CUTS.values(), _ended):
        for number in range(3):
            server.spoiling = _cut_once(number, cut)
            _check_whole_or_failed(storage, way, expected)


def _cut_once(number: int, cut: Cut) -> Cut:
    left = itertools.count(-number)
    return lambda body: body if next(left) else cut(body)


def _check_whole_or_failed(storage: Storage, way: str, expected: object) -> None:
    try:
        found = WAYS[way](storage)
    except EbbtideError as error:
        assert error.kind in ("storage_error", "corrupt_ref")
    else:
        assert found == expected


@randomized("incomplete answers")
def test_random_cuts(server: Server, storage: Storage, seed: int) -> None:
    """A listing equals that without the cuts, or fails."""
    rng = random.Random(seed)
    way, share, cuts = rng.choice(list(WAYS)), rng.choice([0.1, 0.5]), list(CUTS.values())
    server.spoiling = bytes
    expected = WAYS[way](storage)
    server.spoiling = lambda body: rng.choice(cuts)(body) if rng.random() < share else body
    _check_whole_or_failed(storage, way, expected)


def test_an_import_does_not_take_a_part_for_all(
    server: Server, storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in [*storage.options, ("endpoint_url", dict(storage.options)["endpoint"])]:
        monkeypatch.setenv(f"AWS_{name.upper()}", text)
    clients.connect.cache_clear()
    assert sum(map(len, list_external("s3://bucket/data"))) == 9
    server.spoiling = _truncated
    with pytest.raises(Failed):
        list(list_external("s3://bucket/data"))
    clients.connect.cache_clear()


def test_a_ref_that_is_cut_off_is_an_error(server: Server, storage: Storage) -> None:
    cuts: list[Cut] = [lambda body: body[:3], lambda _: b"", lambda _: HTML]
    for cut, is_length_kept in [(cuts[0], True), *((each, False) for each in cuts)]:
        server.cut, server.is_length_kept = cut, is_length_kept
        with pytest.raises((Failed, Refused)):
            read_refs(storage)


def _is_delete(path: str) -> bool:
    return "delete=" in path or path.endswith("?delete")


def _unnamed(body: bytes) -> bytes:
    return re.sub(rb"<Deleted>\s*<Key>[^<]*bc</Key>.*?</Deleted>", b"", body, flags=re.DOTALL)


def _busy(body: bytes) -> bytes:
    return body.replace(b"<Deleted>", b"<Error><Code>SlowDown</Code>").replace(
        b"</Deleted>", b"</Error>"
    )


BULK_CUTS: Final[dict[str, Cut]] = {
    **{name: CUTS[name] for name in ("html", "html that is no xml", "an error", "half", "nothing")},
    "an empty answer": lambda _: b"<DeleteResult/>",
    "an empty page": lambda _: b"<html/>",
    "an error without a code": lambda body: body.replace(b"Deleted>", b"Error>"),
}


@pytest.fixture
def front(s3_url: str, server: Server) -> Iterator[Proxy]:
    del s3_url, server
    with proxied(os.environ["AWS_ENDPOINT"]) as found:
        yield found


@pytest.fixture
def few(front: Proxy, s3_url: str) -> Storage:
    options = {"endpoint": front.endpoint, "allow_http": "true"}
    storage = open_storage(f"{s3_url}/{new_id()}", options)
    for name in ("a", "bc", "d & <e>", "f"):
        storage.put(name, b"data")
    return storage


def _outcomes(storage: Storage) -> dict[str, str]:
    found = storage.delete(["a", "bc", "d & <e>", "f"])
    assert all((each.error is None) == (each.outcome == "deleted") for each in found)
    return {each.address: each.outcome for each in found}


def test_a_key_that_a_bulk_delete_does_not_name_has_failed(front: Proxy, few: Storage) -> None:
    front.spoiling = lambda _, path, body: _unnamed(body) if _is_delete(path) else body
    assert _outcomes(few) == {"a": "deleted", "bc": "failed", "d & <e>": "deleted", "f": "deleted"}


def test_a_bulk_delete_without_its_answer_has_failed(front: Proxy, few: Storage) -> None:
    for name, cut in BULK_CUTS.items():
        front.spoiling = lambda _, path, body, cut=cut: cut(body) if _is_delete(path) else body
        assert set(_outcomes(few).values()) == {"failed"}, name


def test_a_bulk_delete_that_is_cut_once_is_asked_again(front: Proxy, few: Storage) -> None:
    for name, cut in {**BULK_CUTS, "unnamed": _unnamed, "busy": _busy}.items():
        asked: list[str] = []

        def once(_: str, path: str, body: bytes) -> bytes:
            asked.extend([path] * _is_delete(path))  # noqa: B023
            return cut(body) if _is_delete(path) and len(asked) == 1 else body  # noqa: B023

        front.spoiling = once
        assert set(_outcomes(few).values()) == {"deleted"}, name
    assert len(asked) == 2, "if the storage is busy, not in halves, which would be more requests"
    assert not _listed(few)


def test_a_carriage_return_of_a_key_stays_one() -> None:
    """A parser of XML reads it as a line feed, which is another key, unless it is escaped."""
    key = ElementTree.fromstring(_deletion([("a\r\n&<", "1")])).findtext("Object/Key")
    assert key == "a\r\n&<"


AZURE_CUTS: Final[dict[str, Cut]] = {
    **{name: CUTS[name] for name in ("html", "html that is no xml", "an error", "half", "nothing")},
    **{name: CUTS[name] for name in ("another document", "json")},
    "an empty page": lambda _: b"<html/>",
    "an empty listing": lambda _: b"<EnumerationResults/>",
}


@pytest.mark.parametrize("way", ["directories", "streamed", "prefixes"])
def test_a_listing_of_azure_of_another_kind_is_an_error(
    azure_url: str, way: str, subtests: pytest.Subtests
) -> None:
    place = f"{azure_url}/{new_id()}"
    open_storage(place).put("refs/a/b", b"data")
    endpoint = urlsplit(os.environ["AZURE_STORAGE_ENDPOINT"])
    with proxied(f"{endpoint.scheme}://{endpoint.netloc}") as front:
        behind = open_storage(place, {"endpoint": front.endpoint + endpoint.path})
        assert WAYS[way](behind)
        for name, cut in AZURE_CUTS.items():
            front.spoiling = lambda _, path, body, cut=cut: (
                cut(body) if "comp=list" in path else body
            )
            with subtests.test(cut=name), raises("storage_error", of=Failed):
                WAYS[way](behind)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"0123456789" * 100, {}),
        (206, b"0123456789", {}),
        (206, b"0123456789", {"Content-Range": "bytes 0-9/1000"}),
        (206, b"01234567", {"Content-Range": "bytes 10-17/1000"}),
        (206, b"", {"Content-Range": "bytes 10-19/1000"}),
    ],
)
def test_a_part_of_an_object_is_not_another_part(
    status: int, body: bytes, told: dict[str, str]
) -> None:
    """The bytes 10 to 19 of an object are asked for."""
    with (
        answering(lambda method, _: _object(method, status, body, told)) as endpoint,
        pytest.raises((Failed, Conflict)),
    ):
        b"".join(s3_at(endpoint).stream("ranges", start=10, end=20))


def test_a_document_of_another_kind_is_no_answer() -> None:
    """Whatever it holds: also one that would be read as an empty listing."""
    for found in (HTML, b"<EnumerationResults/>", b"<x:html xmlns:x='y'/>"):
        with pytest.raises(ValueError, match="in place of ListBucketResult"):
            requests.document(found, "ListBucketResult", "Error")
    for found in (b"<ListBucketResult xmlns='y'/>", b"<Error/>"):
        assert requests.document(found, "ListBucketResult", "Error") is not None
