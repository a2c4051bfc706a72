"""Requests that obstore does not send, by URLs that it signs: such as a listing key by key.

S3 allows any key. obstore allows no key with an empty, `.` or `..` part or a control character, and
fails at a page of a listing that has such a key. obstore also takes any answer without a token for
the last page, even a proxy's page in HTML. Here, each answer must be a listing, and must say that
it is whole. Not for: the pages of long listings, since this is slower; versions of objects
(`retained`). Source: Amazon S3 API Reference, ListObjectsV2 and DeleteObjects.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.client import HTTPException
from io import BytesIO
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast
from urllib.error import HTTPError
from urllib.parse import quote, unquote_plus
from urllib.request import Request, urlopen
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import obstore

from ebbtide.errors import Failed, InvalidInput
from ebbtide.storage import base, clients
from ebbtide.text import shown

if TYPE_CHECKING:
    from obstore.store import S3Store

FAILURES: Final = (HTTPException, ElementTree.ParseError, *clients.ERRORS)
"""The exceptions of a failed request. One with an answer is an HTTPError, and a FailedAnswer if it
comes from `repeated`."""
TIMEOUT_SECONDS: Final = 150
TRIES_MAX: Final = 5
_NOT_IMPLEMENTED: Final = 501
_BODY_BYTES_MAX: Final = 1 << 16
DELETES_MAX: Final = 1000
"""Objects in one request for deletes, of S3."""
_LASTS: Final = timedelta(minutes=10)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_UNTOLD: Final = "the storage did not say whether it deleted it: try again"
_ENDPOINT_OPTIONS: Final = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "aws_")
    for name in ("endpoint", "endpoint_url", "virtual_hosted_style_request")
)
_Answer = TypeVar("_Answer")


class FailedAnswer(HTTPError):
    """An HTTPError whose connection is closed. `body` is what the answer said."""

    def __init__(self, error: HTTPError) -> None:
        self.body = b""
        with error, suppress(*FAILURES):
            self.body = error.read(_BODY_BYTES_MAX)
        super().__init__(error.url, error.code, error.reason, error.headers, BytesIO())
        self.close()

    def told(self) -> tuple[str, str]:
        """Returns the code and the message of the storage. Both are "" without such an answer."""
        try:
            found = ElementTree.fromstring(self.body)
        except ElementTree.ParseError:
            return "", ""
        return found.findtext("{*}Code") or "", found.findtext("{*}Message") or ""


def document(body: bytes, *kinds: str) -> ElementTree.Element:
    """Parses the XML of an answer, whose root is one of `kinds`, in any namespace.

    Raises ValueError for any other document. A proxy's page in HTML can have the status 200, and
    holds no keys: it would look like an empty listing.
    """
    found = ElementTree.fromstring(body)
    if found.tag.rpartition("}")[2] not in kinds:
        raise ValueError(
            f"the answer is a document {shown(found.tag)} in place of {kinds[0]}, perhaps of a "
            "proxy before the storage"
        )
    return found


def headers_at(url: str) -> Mapping[str, str]:
    """Returns the headers of an object, whose names have any case. Raises FAILURES."""

    def send() -> Mapping[str, str]:
        with urlopen(Request(url, method="HEAD"), timeout=TIMEOUT_SECONDS) as answer:
            found: Mapping[str, str] = answer.headers
            return found

    return repeated(send)


def repeated(send: Callable[[], _Answer], *, tries: int = TRIES_MAX) -> _Answer:
    """Sends a request, and again if the network or the server failed. Raises FAILURES."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return send()
        except HTTPError as error:
            # Not closed, the error would hold the connection.
            failed = FailedAnswer(error)
            is_final = error.code == _NOT_IMPLEMENTED or (error.code < 500 and error.code != 429)
            if is_final or attempt == tries:
                raise failed from None
        except FAILURES:
            if attempt == tries:
                raise
        time.sleep(0.2 * 2**attempt)


@dataclass(frozen=True, slots=True)
class ListedKey:
    """An object in a page of a listing. `storage_class` is None if the server does not name it."""

    key: str
    size_bytes: int
    last_modified: datetime
    storage_class: str | None


@dataclass(frozen=True, slots=True)
class KeyPage:
    """One page of a listing: objects, and prefixes if it is delimited. `token` is where the next
    page begins, or None if this is the last one."""

    objects: list[ListedKey]
    prefixes: list[str]
    token: str | None


def bucket_of(url: str, options: tuple[tuple[str, str], ...]) -> tuple[Bucket, str]:
    """Returns the bucket of an S3 storage at a normalized URL, and the prefix of all its keys."""
    name, _, prefix = url.partition("://")[2].partition("/")
    return Bucket(name, options), f"{prefix}/" if prefix else ""


def is_address(key: str) -> bool:
    """Whether obstore can name the object of a key."""
    try:
        base.split_address(key)
    except InvalidInput:
        return False
    return _CONTROL.search(key) is None


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of S3, by its name and the options of its storage."""

    name: str
    options: tuple[tuple[str, str], ...]

    def list_keys(
        self, prefix: str, *, delimited: bool = False, after: str = ""
    ) -> Iterator[KeyPage]:
        """Yields the keys that begin with `prefix` and sort after `after`, in pages.

        If `delimited`, keys with a slash after the prefix are replaced by `prefixes`: their parts
        up to that slash. Raises Failed (`storage_error`).
        """
        asked = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
        asked |= {"delimiter": "/"} if delimited else {}
        asked |= {"start-after": after} if after else {}
        page = self._page(asked)
        if after:
            _check_begin(self.name, page, after)
        yield page
        while page.token is not None:
            earlier = page.token
            page = self._page(asked | {"continuation-token": earlier})
            if page.token == earlier:
                raise _incomplete(self.name, prefix, "it begins the same page again and again")
            yield page

    def _page(self, asked: Mapping[str, str]) -> KeyPage:
        try:
            return _parsed(self.ask("GET", asked, "ListBucketResult"))
        except FAILURES as error:
            raise _incomplete(self.name, asked["prefix"], error) from error

    def ask(
        self,
        method: Literal["GET", "POST"],
        parameters: Mapping[str, str],
        *kinds: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = TRIES_MAX,
    ) -> ElementTree.Element:
        """Sends a request on the bucket itself, and again if the network or the server failed.

        Returns the XML of the answer, whose root is one of `kinds`. Raises FAILURES.
        """

        def send() -> ElementTree.Element:
            url = self._signed(method, parameters)
            request = Request(url, body, dict(headers or {}), method=method)
            with urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return document(answer.read(), *kinds)

        return repeated(send, tries=tries)

    def delete(
        self, objects: Sequence[tuple[str, str]], *, tries: int = TRIES_MAX
    ) -> dict[tuple[str, str], tuple[str, str]]:
        """Deletes at most DELETES_MAX objects (key, "") or versions (key, version id) at once.

        Returns code and message of each that the storage does not confirm. The code is "" if the
        answer does not name it. Raises FAILURES.
        """
        body = _deletion(objects)
        checksum = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"Content-MD5": checksum, "Content-Type": "application/xml"}
        answer = self.ask(
            "POST", {"delete": ""}, "DeleteResult", body=body, headers=headers, tries=tries
        )
        told = {name for each in answer.iterfind("{*}Deleted") for name in _named(each)}
        errors = {
            name: (text_of(each, "Code"), text_of(each, "Message") or "an error without a code")
            for each in answer.iterfind("{*}Error")
            for name in _named(each)
        }
        untold = {each: ("", _UNTOLD) for each in objects if each not in told}
        return untold | {each: errors[each] for each in objects if each in errors}

    def headers_of(self, key: str, version_id: str) -> Mapping[str, str]:
        """Returns the headers of a version of the object of a key. Their names have any case.
        Raises FAILURES."""
        return headers_at(self._signed("HEAD", {"versionId": version_id}, key))

    def _signed(
        self, method: Literal["GET", "HEAD", "POST"], parameters: Mapping[str, str], key: str = ""
    ) -> str:
        """Returns the signed URL of a request on the object of a key, or on the bucket itself.

        obstore finds endpoint and credentials, but signs only URLs of objects without a query.
        Therefore the query is the end of the endpoint, and the object's name is empty. The object's
        path is then one slash after the query. The slash becomes part of a parameter that S3
        ignores (`x-id`).
        """
        client = cast("S3Store", clients.connect(f"s3://{self.name}", self.options))
        place = obstore.sign(client, "GET", key or "x", _LASTS).partition("?")[0]
        endpoint = place if key else place.removesuffix("/x")
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        changes = {
            "endpoint": f"{endpoint}?{query}&x-id=Ebbtide",
            "virtual_hosted_style_request": "true",
        }
        # Each of the replaced options has several names.
        kept = {name: text for name, text in self.options if name.lower() not in _ENDPOINT_OPTIONS}
        return obstore.sign(clients.s3_store(self.name, {**kept, **changes}), method, "", _LASTS)


def _parsed(page: ElementTree.Element) -> KeyPage:
    """Reads a page. Raises ValueError unless it is whole, and says whether it is the last one."""
    is_quoted = page.findtext("{*}EncodingType") == "url"

    def name(element: ElementTree.Element, field: str) -> str:
        text = text_of(element, field)
        return unquote_plus(text, errors="backslashreplace") if is_quoted else text

    found = KeyPage(
        [
            ListedKey(
                name(each, "Key"),
                int(text_of(each, "Size")),
                datetime.fromisoformat(text_of(each, "LastModified")),
                text_of(each, "StorageClass") or None,
            )
            for each in page.iterfind("{*}Contents")
        ],
        [name(each, "Prefix") for each in page.iterfind("{*}CommonPrefixes")],
        text_of(page, "NextContinuationToken") or None,
    )
    if is_truncated(page) and found.token is None:
        raise ValueError("it says that there is more (IsTruncated), and not where it continues")
    # Some servers do not count prefixes.
    if int(text_of(page, "KeyCount") or 0) > len(found.objects) + len(found.prefixes):
        raise ValueError("it has fewer keys than it says (KeyCount)")
    return found


def _deletion(objects: Iterable[tuple[str, str]]) -> bytes:
    """Returns the body of a request for deletes."""

    def field(name: str, text: str) -> str:
        # A parser would read a carriage return as a line feed: that is another key.
        return f"<{name}>{escape(text, {chr(13): '&#13;'})}</{name}>" if text else ""

    listed = (
        f"<Object>{field('Key', key)}{field('VersionId', version_id)}</Object>"
        for key, version_id in objects
    )
    return f"<Delete><Quiet>false</Quiet>{''.join(listed)}</Delete>".encode()


def _named(element: ElementTree.Element) -> set[tuple[str, str]]:
    """Returns the names that an entry of an answer can stand for: a version, or just its key."""
    key = text_of(element, "Key")
    return {(key, text_of(element, "VersionId")), (key, "")}


def is_truncated(page: ElementTree.Element) -> bool:
    """Whether a page of a listing says that there is more. Raises ValueError if it says neither."""
    told = text_of(page, "IsTruncated").strip()
    if told not in ("true", "false"):
        raise ValueError("it does not say whether there is more (IsTruncated)")
    return told == "true"


def _check_begin(bucket: str, page: KeyPage, after: str) -> None:
    """Raises Failed if the first page has a key before `after`: the storage ignores `start-after`,
    or lists keys in no order, so that other keys may be missing."""
    names = [*(each.key for each in page.objects[:1]), *page.prefixes[:1]]
    if any(name.encode() < after.encode() and "\\" not in name for name in names):
        raise _incomplete(bucket, after, "its keys are in no order, or begin too early")


def _incomplete(bucket: str, prefix: str, why: object) -> Failed:
    return Failed(
        "storage_error",
        f"the listing of {shown(prefix)} in bucket {bucket} is incomplete: {why}. A part of a "
        "listing decides nothing. Try again; if the error stays, the storage or a proxy before it "
        "does not list as S3 does",
    )


def text_of(element: ElementTree.Element, field: str) -> str:
    """Returns the text of a field of an answer, in any namespace; "" if it has none."""
    return element.findtext(f"{{*}}{field}") or ""
