"""Signed requests on a bucket of S3 that obstore does not send, such as a listing key by key.

S3 allows any key. obstore allows no key with an empty, `.` or `..` part or a control character, and
fails at a page of a listing that has such a key. Not for: any other listing, since this one is
slower; versions of objects (`versions`). Source: Amazon S3 API Reference, ListObjectsV2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote, unquote_plus
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import obstore

from ebbtide.errors import Failed, InvalidInput
from ebbtide.storage import asking, base, clients
from ebbtide.storage.asking import FAILURES

if TYPE_CHECKING:
    from obstore.store import S3Store

_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_LASTS: Final = timedelta(minutes=10)
_ENDPOINT_OPTIONS: Final = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "aws_")
    for name in ("endpoint", "endpoint_url", "virtual_hosted_style_request")
)


@dataclass(frozen=True, slots=True)
class KeyPage:
    """One page of a listing: objects (key, size, date), and prefixes if it is delimited."""

    objects: list[tuple[str, int, datetime]]
    prefixes: list[str]


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
        token: str | None = ""
        while token is not None:
            page = self._page(asked | ({"continuation-token": token} if token else {}))
            yield _parsed(page)
            token = page.findtext("{*}NextContinuationToken")

    def _page(self, parameters: Mapping[str, str]) -> ElementTree.Element:
        try:
            return self.ask("GET", parameters)
        except FAILURES as error:
            raise Failed(
                "storage_error",
                f"bucket {self.name} has keys that are not addresses, and could not be listed key "
                f"by key: {error}",
            ) from error

    def ask(
        self,
        method: Literal["GET", "POST"],
        parameters: Mapping[str, str],
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ElementTree.Element:
        """Sends a request on the bucket itself, and again if the network or the server failed.

        Returns the XML of the answer. Raises FAILURES.
        """

        def send() -> ElementTree.Element:
            url = self._signed(method, parameters)
            request = Request(url, body, dict(headers or {}), method=method)
            with urlopen(request, timeout=asking.TIMEOUT_SECONDS) as answer:
                return ElementTree.fromstring(answer.read())

        return asking.repeated(send)

    def headers_of(self, key: str, version_id: str) -> Mapping[str, str]:
        """Returns the headers of a version of the object of a key. Their names have any case.
        Raises FAILURES."""
        return asking.headers_at(self._signed("HEAD", {"versionId": version_id}, key))

    def _signed(
        self, method: Literal["GET", "HEAD", "POST"], parameters: Mapping[str, str], key: str = ""
    ) -> str:
        """Returns the signed URL of a request on the object of a key, or on the bucket itself.

        obstore finds endpoint and credentials, but signs only URLs of objects without a query.
        Therefore the query is the end of the endpoint, and the object's name is empty. The object's
        path is then one slash after the query. The slash becomes part of a parameter that S3
        ignores (`x-id`).
        """
        place = obstore.sign(self._client({}), "GET", key or "x", _LASTS).partition("?")[0]
        endpoint = place if key else place.removesuffix("/x")
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        changes = {
            "endpoint": f"{endpoint}?{query}&x-id=Ebbtide",
            "virtual_hosted_style_request": "true",
        }
        return obstore.sign(self._client(changes), method, "", _LASTS)

    def _client(self, changes: Mapping[str, str]) -> S3Store:
        """Returns a client with some options replaced. Each of these options has several names."""
        replaced = _ENDPOINT_OPTIONS if changes else ()
        options = {name: value for name, value in self.options if name.lower() not in replaced}
        return clients.s3_store(self.name, {**options, **changes})


def _parsed(page: ElementTree.Element) -> KeyPage:
    is_quoted = page.findtext("{*}EncodingType") == "url"

    def name(element: ElementTree.Element, field: str) -> str:
        text = text_of(element, field)
        return unquote_plus(text, errors="backslashreplace") if is_quoted else text

    return KeyPage(
        [
            (
                name(each, "Key"),
                int(text_of(each, "Size")),
                datetime.fromisoformat(text_of(each, "LastModified")),
            )
            for each in page.iterfind("{*}Contents")
        ],
        [name(each, "Prefix") for each in page.iterfind("{*}CommonPrefixes")],
    )


def text_of(element: ElementTree.Element, field: str) -> str:
    """Returns the text of a field of an answer, in any namespace; "" if it has none."""
    return element.findtext(f"{{*}}{field}") or ""
