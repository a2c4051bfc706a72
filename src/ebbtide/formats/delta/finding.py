"""Finds the tables of a name: a place, all tables below a place, or several of both.

A table is a folder with a `_delta_log/`. Not for: reading a log.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from ebbtide.errors import InvalidInput, UnknownRepository
from ebbtide.formats.delta.log import LOG
from ebbtide.storage import Storage, open_storage

_BELOW: Final = "/**"
_BETWEEN: Final = ","


@dataclass(frozen=True, slots=True)
class Found:
    """Tables by the prefixes of their folders below one root. `is_one`: the name is that of one
    table, which is the root. `key` is the same for each spelling of a name."""

    storage: Storage
    prefixes: tuple[str, ...]
    is_one: bool
    key: str


def find_tables(text: str) -> Found:
    """Returns the tables of a name without its scheme. A place that is named twice counts once.

    Raises InvalidInput `invalid_argument` for a missing place and for places in several buckets,
    and NotFound `repository_not_found` if a place has no table.
    """
    is_place = not text.endswith(_BELOW) and (_BETWEEN not in text or _is_table(text))
    places = [text] if is_place else [each.strip() for each in text.split(_BETWEEN)]
    if not all(map(str.strip, places)):
        raise InvalidInput(
            "invalid_argument",
            f"a place is missing in 'delta:{text}': write delta:DIRECTORY, or delta:s3://…",
        )
    named: dict[tuple[str, bool], tuple[str, Storage]] = {}
    for place in places:
        root = open_storage(place.removesuffix(_BELOW) or "/")
        named.setdefault((root.url, place.endswith(_BELOW)), (place, root))
    is_one = len(named) == 1 and not places[0].endswith(_BELOW)
    storage = root if is_one else open_storage(_common([url for url, _ in named]))
    prefixes, keys = set[str](), []
    for (url, is_below), (place, root) in named.items():
        prefix = unquote(url) if url.startswith("file:") else url
        prefix = prefix.removeprefix(unquote(storage.url)).strip("/")
        prefix += "/" if prefix else ""
        found = [""] if has_log(root, "") else []
        found += tables_below(root) if is_below else []
        if not found:
            raise UnknownRepository(
                "repository_not_found", f"there is no Delta table at {place}: it has no {LOG}"
            )
        prefixes |= {prefix + each for each in found}
        keys.append(f"{prefix}**" if is_below else prefix)
    key = "table" if is_one else ",".join(sorted(keys))
    return Found(storage, tuple(sorted(prefixes)), is_one, key)


def _is_table(place: str) -> bool:
    return has_log(open_storage(place), "")


def has_log(storage: Storage, prefix: str) -> bool:
    """Whether a folder has a log, and so is a table."""
    found = storage.list(f"{prefix}{LOG}", recursive=False)
    return any(batch.num_rows for batch in found)


def _common(urls: list[str]) -> str:
    """Returns the innermost folder that has all of these places."""
    if len({url.split("/")[2] if "://" in url else url for url in urls}) > 1:
        raise InvalidInput(
            "invalid_argument",
            "the tables of one run lie in one bucket or on one file system: name the others apart",
        )
    scheme, _, first = urls[0].partition("://")
    return f"{scheme}://{posixpath.commonpath([first, *(u.partition('://')[2] for u in urls)])}"


def tables_below(storage: Storage) -> Iterator[str]:
    """Yields the prefixes of the tables below a root. Hidden folders are not searched, and of a
    table no folders of partitions."""
    waiting = [""]
    while waiting:
        place = waiting.pop()
        folders = storage.list_prefixes(place)
        is_table = f"{place}{LOG}" in folders
        if is_table:
            yield place
        names = [each.removeprefix(place) for each in folders]
        waiting += [place + e for e in names if e[0] not in "._" and not (is_table and "=" in e)]
