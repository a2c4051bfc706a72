"""Where the files of tables are: absolute locations in metadata, and addresses on the storage.

Iceberg writes absolute locations, and writers spell one storage in several ways. An address is what
is left behind a declared spelling of the root. Nothing else is changed: on an object store, `%20`
and `//` are parts of a key. Source: Iceberg table specification, versions 1 to 3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ebbtide.errors import InvalidInput, Refused
from ebbtide.formats.locations import FAMILIES

_LOCAL: Final = "file://"


def normalized(location: str) -> str:
    """Returns a location with `://`: a path becomes a URL, and `file:/x` becomes `file:///x`."""
    if "://" in location:
        return location
    if location.startswith("file:"):
        return f"{_LOCAL}{location.removeprefix('file:')}"
    return f"{_LOCAL}{location}" if location.startswith("/") else location


@dataclass(frozen=True)
class Places:
    """The root of the storage, and its other spellings. `url` has no slash at its end.

    `aliases` are pairs of a prefix of locations, and the prefix of URLs that it means.
    """

    url: str
    aliases: tuple[tuple[str, str], ...] = ()

    @cached_property
    def _prefixes(self) -> tuple[str, ...]:
        scheme, rest = self.url.split("://", 1)
        others = (each for each, family in FAMILIES.items() if family == scheme)
        return tuple(f"{each}://{rest}/" for each in (scheme, *others))

    def address(self, location: str) -> str:
        """Returns the address of a location, or its URL if it lies outside the root.

        Raises Refused `prefix_mismatch` if the location names the root in a spelling that is not
        declared: its files would seem to be needed by nobody.
        """
        url = normalized(location)
        for prefix, meant in self.aliases:
            if url.startswith(prefix):
                url = meant + url.removeprefix(prefix)
                break
        for prefix in self._prefixes:
            if url.startswith(prefix):
                return self._within(url.removeprefix(prefix))
        self._check_spelling(url)
        return url

    def _within(self, address: str) -> str:
        # In a directory, `a//b` is `a/b`; for an object store they are two keys.
        is_spelled = "//" in address and self.url.startswith(_LOCAL)
        return re.sub("/{2,}", "/", address) if is_spelled else address

    def _check_spelling(self, url: str) -> None:
        if "://" not in url:
            raise Refused(
                "prefix_mismatch",
                f"the location {url[:200]!r} has no scheme: EBBTIDE_ICEBERG_ALIASES says what it "
                "means",
            )
        rest, own = url.split("://", 1)[1], self.url.split("://", 1)[1]
        # An authority may stand before the path: hdfs://name:8020/warehouse.
        path = "/" + rest.partition("/")[2]
        for spelled in (rest, path):
            if spelled.startswith(f"{own}/"):
                prefix = url[: len(url) - len(spelled)] + own + "/"
                raise Refused(
                    "prefix_mismatch",
                    f"{url[:300]} may lie in {self.url}, and is spelled in another way: if both "
                    f"are the same, set EBBTIDE_ICEBERG_ALIASES={prefix}={self.url}/",
                )

    def folder(self, location: str) -> str | None:
        """Returns the address of a folder with a slash at its end, empty for the root itself. None
        for a folder outside the root."""
        found = self.address(f"{location.rstrip('/')}/")
        return None if "://" in found else found


def parse_aliases(text: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the pairs in `PREFIX=URL,PREFIX=URL`. Raises InvalidInput `invalid_setting`."""
    pairs = []
    for part in filter(None, (each.strip() for each in (text or "").split(","))):
        prefix, equals, url = part.partition("=")
        if not equals or not prefix.endswith("/") or not url.endswith("/"):
            raise InvalidInput(
                "invalid_setting",
                f"EBBTIDE_ICEBERG_ALIASES has {part!r}: write PREFIX=URL, both with a slash at "
                "their ends",
                setting="iceberg_aliases",
            )
        pairs.append((normalized(prefix), normalized(url)))
    # The longest first: one prefix can be the beginning of another.
    return tuple(sorted(pairs, key=lambda pair: -len(pair[0])))
