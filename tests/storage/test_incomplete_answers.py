"""Answers of a storage that are not whole, or not of the right kind: none of them passes for a
shorter listing, for an object, or for a delete.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Final
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from ebbtide.arrow import texts
from ebbtide.errors import Conflict, EbbtideError, Failed, Refused
from ebbtide.formats.icechunk.refs import read_refs
from ebbtide.ids import new_id
from ebbtide.storage import Storage, asking, deleting, open_storage
from ebbtide.storage.external import list_external
from ebbtide.storage.keys import _deletion
from tests.support.proxy import Proxy, proxied
from tests.support.randomized import randomized

Cut = Callable[[bytes], bytes]

HTML: Final = b"<html><head><title>Sign in</title></head><body><p>Sign in</p></body></html>"
LONG: Final = 1_002
"""The keys of a directory with more than one page."""


def _is_listing(path: str) -> bool:
    return "list-type=2" in path


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
    """A page that says that it is the last one."""
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
    "an empty listing": lambda _: b"<ListBucketResult></ListBucketResult>",
    "json": lambda _: b'{"message": "Sign in"}',
    "nothing": lambda _: b"",
    "half": lambda body: body[: len(body) // 2],
    "without its end": lambda body: body[:-8],
}


@pytest.fixture(scope="module")
def place(s3_url: str) -> str:
    """Refs of Icechunk, a flat directory of two pages, and a few directories."""
    url = f"{s3_url}/{new_id()}"
    storage = open_storage(url)
    names = [f"refs/branch.{name}/ref.json" for name in ("main", "dev", "zdev")]
    names += [f"flat/{number:05}" for number in range(LONG)]
    names += [f"data/{slice_}/{name}" for slice_ in "abc" for name in "xyz"]
    snapshot = b'{"snapshot":"1CECHNKREP0F1RSTCMT0"}'
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.put(name, snapshot), names))
    return url


@pytest.fixture
def front(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the storage."""
    del s3_url
    monkeypatch.setattr(asking, "time", SimpleNamespace(sleep=lambda _: None))
    with proxied(os.environ["AWS_ENDPOINT"]) as found:
        yield found


def _behind(front: Proxy, place: str) -> Storage:
    return open_storage(place, {"endpoint": front.endpoint, "allow_http": "true"})


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
@pytest.mark.parametrize("cut", CUTS)
def test_a_listing_that_is_cut_off_is_an_error(
    front: Proxy, place: str, cut: str, way: str
) -> None:
    """On every page, and for as long as the front cuts."""
    storage = _behind(front, place)
    front.spoiling = lambda _, path, body: CUTS[cut](body) if _is_listing(path) else body
    with pytest.raises(Failed) as caught:
        WAYS[way](storage)
    assert caught.value.kind == "storage_error"


@pytest.mark.parametrize("way", ["prefixes", "refs", "level by level"])
def test_fewer_keys_than_an_answer_counts_are_an_error(front: Proxy, place: str, way: str) -> None:
    storage = _behind(front, place)
    front.spoiling = lambda _, path, body: _without_entries(body) if _is_listing(path) else body
    with pytest.raises(Failed, match="KeyCount"):
        WAYS[way](storage)


@pytest.mark.parametrize("way", ["streamed", "prefixes", "a long directory", "refs"])
def test_a_page_that_is_cut_once_loses_nothing(front: Proxy, place: str, way: str) -> None:
    """Each answer of the listing is cut in turn, in each way. It is whole, or fails."""
    storage = _behind(front, place)
    expected = WAYS[way](storage)
    ends = {"ends early": _ended} if way == "streamed" else {}
    for name, cut in (CUTS | ends).items():
        for spoiled in range(3):
            seen = -1

            def once(_: str, path: str, body: bytes) -> bytes:
                nonlocal seen
                seen += _is_listing(path)
                return cut(body) if _is_listing(path) and seen == spoiled else body  # noqa: B023

            front.spoiling = once
            try:
                found = WAYS[way](storage)
            except EbbtideError as error:
                assert error.kind == "storage_error", (name, spoiled)
            else:
                assert found == expected, (name, spoiled)


@randomized("incomplete answers")
def test_random_cuts(front: Proxy, place: str, seed: int) -> None:
    """A listing equals that without the cuts, or fails."""
    rng = random.Random(seed)
    storage = _behind(front, place)
    way = rng.choice(list(WAYS))
    front.spoiling = None
    expected = WAYS[way](storage)
    share = rng.choice([0.1, 0.5])
    cuts = list(CUTS.values())

    def some(method: str, path: str, body: bytes) -> bytes:
        del method
        return rng.choice(cuts)(body) if _is_listing(path) and rng.random() < share else body

    front.spoiling = some
    try:
        found = WAYS[way](storage)
    except EbbtideError as error:
        assert error.kind in ("storage_error", "corrupt_ref")
    else:
        assert found == expected


def test_an_import_does_not_take_a_part_for_all(
    front: Proxy, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", front.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", front.endpoint)
    assert sum(map(len, list_external(f"{place}/data"))) == 9
    front.spoiling = lambda _, path, body: _truncated(body) if _is_listing(path) else body
    with pytest.raises(Failed):
        list(list_external(f"{place}/data"))


@pytest.mark.parametrize(
    ("cut", "keeps_length"),
    [
        (lambda body: body[:3], False),
        (lambda body: body[:3], True),
        (lambda _: b"", False),
        (lambda _: HTML, False),
    ],
)
def test_a_ref_that_is_cut_off_is_an_error(
    front: Proxy, place: str, cut: Cut, keeps_length: bool
) -> None:
    storage = _behind(front, place)
    front.is_length_kept = keeps_length
    front.spoiling = lambda _, path, body: cut(body) if path.endswith("ref.json") else body
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
def few(front: Proxy, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A few keys behind the front. Waits end at once."""
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=lambda: 0.0)
    monkeypatch.setattr(deleting, "time", clock)
    storage = _behind(front, f"{s3_url}/{new_id()}")
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


@pytest.mark.parametrize("cut", BULK_CUTS)
def test_a_bulk_delete_without_its_answer_has_failed(front: Proxy, few: Storage, cut: str) -> None:
    front.spoiling = lambda _, path, body: BULK_CUTS[cut](body) if _is_delete(path) else body
    assert set(_outcomes(few).values()) == {"failed"}


@pytest.mark.parametrize("cut", [*BULK_CUTS, "unnamed", "busy"])
def test_a_bulk_delete_that_is_cut_once_is_asked_again(
    front: Proxy, few: Storage, cut: str
) -> None:
    seen = 0

    def once(_: str, path: str, body: bytes) -> bytes:
        nonlocal seen
        seen += _is_delete(path)
        cuts = {**BULK_CUTS, "unnamed": _unnamed, "busy": _busy}
        return cuts[cut](body) if _is_delete(path) and seen == 1 else body

    front.spoiling = once
    assert set(_outcomes(few).values()) == {"deleted"}
    assert not _listed(few)
    if cut == "busy":
        assert seen == 2  # not in halves, which would be more requests


def test_a_carriage_return_of_a_key_stays_one() -> None:
    """A parser of XML reads it as a line feed, which is another key, unless it is escaped."""
    key = ElementTree.fromstring(_deletion([("a\r\n&<", "1")])).findtext("Object/Key")
    assert key == "a\r\n&<"


AZURE_CUTS: Final[dict[str, Cut]] = {
    "html": lambda _: HTML,
    "html that is no xml": CUTS["html that is no xml"],
    "an empty page": lambda _: b"<html/>",
    "an error": CUTS["an error"],
    "another document": CUTS["another document"],
    "an empty listing": lambda _: b"<EnumerationResults/>",
    "json": CUTS["json"],
    "nothing": CUTS["nothing"],
    "half": CUTS["half"],
}


@pytest.mark.parametrize("way", ["directories", "streamed", "prefixes"])
@pytest.mark.parametrize("cut", AZURE_CUTS)
def test_a_listing_of_azure_of_another_kind_is_an_error(azure_url: str, cut: str, way: str) -> None:
    place = f"{azure_url}/{new_id()}"
    open_storage(place).put("refs/a/b", b"data")
    endpoint = urlsplit(os.environ["AZURE_STORAGE_ENDPOINT"])
    with proxied(f"{endpoint.scheme}://{endpoint.netloc}") as front:
        behind = open_storage(place, {"endpoint": front.endpoint + endpoint.path})
        assert WAYS[way](behind)
        front.spoiling = lambda _, path, body: (
            AZURE_CUTS[cut](body) if "comp=list" in path else body
        )
        with pytest.raises(Failed) as caught:
            WAYS[way](behind)
        assert caught.value.kind == "storage_error"


@contextmanager
def _answering(status: int, body: bytes, **headers: str) -> Iterator[Storage]:
    """A storage whose server answers each request in the same way."""

    class Same(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answers."""
            self.send_response(status)
            self.send_header("Last-Modified", "Sat, 01 Nov 2025 10:00:00 GMT")
            self.send_header("ETag", '"a"')
            length = "1000" if self.command == "HEAD" else str(len(body))
            for name, text in {"Content-Length": length, **headers}.items():
                self.send_header(name.replace("_", "-"), text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Is silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Same)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        options = {"endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": "true"}
        options |= {"access_key_id": "a", "secret_access_key": "b", "region": "c"}
        yield open_storage("s3://bucket", options)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"0123456789" * 100, {}),
        (200, HTML, {}),
        (206, b"0123456789", {}),
        (206, b"0123456789", {"Content_Range": "bytes 0-9/1000"}),
        (206, b"01234567", {"Content_Range": "bytes 10-17/1000"}),
        (206, b"", {"Content_Range": "bytes 10-19/1000"}),
    ],
)
def test_a_part_of_an_object_is_not_another_part(
    status: int, body: bytes, told: dict[str, str]
) -> None:
    """The bytes 10 to 19 of an object are asked for."""
    with _answering(status, body, **told) as storage, pytest.raises((Failed, Conflict)):
        b"".join(storage.stream("ranges", start=10, end=20))
