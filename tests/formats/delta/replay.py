"""What a Delta table needs, by plain replay of its log: each version whole, one after the other.

The oracle of the tests of Delta tables. It is written from the protocol's text, is slow on purpose,
and shares no code with Ebbtide or with a library of Delta. Addresses are relative to the table's
root and decoded; times are milliseconds since 1970.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

import pyarrow.parquet as pq

Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
VECTOR: Final = r"deletion_vector_[0-9a-f-]{36}\.bin"
DAY: Final = 86_400_000
Action = dict[str, dict[str, Any]]
Key = tuple[str, str]
"""The path of a file as the log has it, and the id of its deletion vector or ''."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """A policy: periods in days, numbers of versions, and versions on hold."""

    within: float | None = None
    last: int | None = None
    daily: int | None = None
    holds: tuple[int, ...] = ()
    grace: float = 7.0

    def mapping(self) -> dict[str, object]:
        """The policy as Ebbtide reads it."""
        hours = None if self.within is None else f"{round(self.within * 24)}h"
        parts = {"keep_within": hours, "keep_last": self.last, "keep_daily": self.daily}
        rule = {key: value for key, value in parts.items() if value is not None}
        return {"default": rule, "holds": [str(each) for each in self.holds]}

    def kept(self, times: dict[int, int], now: int) -> set[int]:
        """The versions that stay: always the newest, and those of the future; those of the period,
        and the one that was the newest when it began; the last ones; the newest of so many days."""
        order = sorted(times)
        found = {order[-1]} | {each for each in self.holds if each in times}
        found |= {each for each in order if times[each] > now}
        if self.within is not None:
            since = now - self.within * DAY
            found |= {each for each in order if times[each] > since}
            found |= {*[each for each in order if times[each] <= since][-1:]}
        if self.last is not None:
            found |= {*order[-self.last :]}
        days = dict[str, int]()
        for each in reversed(order):
            days.setdefault(f"{datetime.fromtimestamp(times[each] / 1000, UTC):%Y-%m-%d}", each)
        return found | {*list(days.values())[: self.daily or 0]}


class Replay:
    """The log of the table at a place of this machine, as it is now."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "_delta_log"
        self.commits: dict[int, Path] = {}
        self.checkpoints: dict[int, list[list[Path]]] = {}
        self.rows: dict[Path, list[Action]] = {}
        self.states: dict[int, dict[str, Any] | None] = {}
        parts: dict[tuple[int, int], list[Path]] = {}
        for path in sorted(self.log.iterdir()):
            if found := re.fullmatch(r"(\d{20})\.json", path.name):
                self.commits[int(found[1])] = path
            elif found := re.fullmatch(
                r"(\d{20})\.checkpoint(\.[0-9a-f-]{36}\.json|(\.[0-9a-f-]{36})?\.parquet)",
                path.name,
            ):
                self.checkpoints.setdefault(int(found[1]), []).append([path])
            elif found := re.fullmatch(
                r"(\d{20})\.checkpoint\.\d{10}\.(\d{10})\.parquet", path.name
            ):
                parts.setdefault((int(found[1]), int(found[2])), []).append(path)
        for (version, count), paths in parts.items():
            if len(paths) == count:
                self.checkpoints.setdefault(version, []).append(paths)

    def actions(self, path: Path) -> list[Action]:
        """The actions of one file of the log."""
        if path not in self.rows:
            if path.suffix == ".json":
                lines = path.read_text().split("\n")
                rows = [json.loads(each) for each in lines if each.strip()]
            else:
                rows = pq.ParquetFile(path).read().to_pylist()
            self.rows[path] = [{k: v for k, v in row.items() if v is not None} for row in rows]
        return self.rows[path]

    def checkpoint(self, version: int) -> list[Action] | None:
        """The actions of a checkpoint that has all of its files."""
        for paths in self.checkpoints.get(version, ()):
            rows = [row for path in paths for row in self.actions(path)]
            named = [unquote(row["sidecar"]["path"]) for row in rows if "sidecar" in row]
            cars = [self.log / "_sidecars" / each.rpartition("/")[2] for each in named]
            if all(each.exists() for each in cars):
                return rows + [row for each in cars for row in self.actions(each)]
        return None

    def chain(self, version: int) -> list[list[Action]] | None:
        """What a version is replayed from: a checkpoint or nothing, and all commits after it."""
        for base in range(version, -2, -1):
            rows = [] if base < 0 else self.checkpoint(base)
            if rows is not None:
                return [rows] + [
                    self.actions(self.commits[each]) for each in range(base + 1, version + 1)
                ]
            if base not in self.commits:
                return None
        return None

    def state(self, version: int) -> dict[str, Any] | None:
        """The adds of a version by their keys, its protocol and its metadata. None if files of the
        log that it needs are gone."""
        if version not in self.states:
            chain = self.chain(version)
            found: dict[str, Any] = {"adds": {}, "protocol": None, "metaData": None}
            for actions in chain or ():
                # The order within a commit has no meaning.
                for kind in ("protocol", "metaData", "remove", "add"):
                    for each in [action[kind] for action in actions if kind in action]:
                        if kind in found:
                            found[kind] = each
                        elif kind == "remove":
                            found["adds"].pop(key_of(each), None)
                        else:
                            found["adds"][key_of(each)] = each
            self.states[version] = None if chain is None else found
        return self.states[version]

    def address(self, uri: str) -> str | None:
        """The address of a path in the log. None outside of the table."""
        parts = urlsplit(uri)
        path = unquote(parts.path if parts.scheme else uri)
        if not parts.scheme and not path.startswith("/"):
            return path
        inside = parts.scheme in ("", "file") and path.startswith(f"{self.root}/")
        return path.removeprefix(f"{self.root}/") if inside else None

    def named(self, add: dict[str, Any]) -> Iterator[str]:
        """The files of an add: its data, and its deletion vector if that is a file."""
        vector = add.get("deletionVector")
        found = [self.address(add["path"])]
        if vector and vector["storageType"] == "u":
            found.append(vector_address(vector["pathOrInlineDv"]))
        elif vector and vector["storageType"] == "p":
            found.append(self.address(vector["pathOrInlineDv"]))
        yield from (each for each in found if each is not None)

    def elsewhere(self, version: int) -> set[Path]:
        """The files that a version needs and that lie outside of the table, on this machine."""
        state = self.state(version)
        assert state is not None
        uris = set[str]()
        for add in state["adds"].values():
            vector = add.get("deletionVector") or {"storageType": "i"}
            uris |= {add["path"]}
            uris |= {vector["pathOrInlineDv"]} if vector["storageType"] == "p" else set()
        found = {urlsplit(each) for each in uris if self.address(each) is None}
        return {Path(unquote(each.path)) for each in found if each.scheme in ("", "file")}

    def files(self, version: int) -> set[str]:
        """The files that a reader of a version needs, with its changed data."""
        state = self.state(version)
        assert state is not None
        found = {each for add in state["adds"].values() for each in self.named(add)}
        cdc = [row["cdc"]["path"] for row in self.actions(self.commits[version]) if "cdc" in row]
        return found | {each for each in map(self.address, cdc) if each is not None}

    @cached_property
    def times(self) -> dict[int, int]:
        """The time of each version that can be rebuilt. It never falls."""
        found: dict[int, int] = {}
        last = 0
        for version in sorted(self.commits):
            if self.state(version) is None:
                continue
            info = [
                a["commitInfo"] for a in self.actions(self.commits[version]) if "commitInfo" in a
            ]
            at = info[0].get("inCommitTimestamp") if info else None
            date = self.commits[version].stat().st_mtime_ns // 1_000_000
            found[version] = last = max(date, last + 1) if at is None else at
        for version in sorted(found, reverse=True):
            if found.get(version + 1, found[version] + 1) <= found[version]:
                found[version] = found[version + 1] - 1
        return found

    def kinds(self) -> dict[str, str]:
        """All files below the root: `data`, or the reason why the file always stays."""
        paths = [p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file()]
        nested = {each.partition("_delta_log/")[0] for each in paths if "/_delta_log/" in each}
        metadata = [self.states[each]["metaData"] for each in self.times]  # type: ignore[index]
        columns = {each for one in metadata for each in one["partitionColumns"]}
        formats = [
            dict(one["configuration"] or {}).get("delta.universalFormat.enabledFormats", "")
            for one in metadata
        ]
        hidden = {"metadata"} if any("iceberg" in each for each in formats) else set[str]()
        return {each: kind_of(each, nested, columns, hidden) for each in paths}

    def live(self, keeping: Keeping, now: int) -> set[str]:
        """The files that the kept versions need."""
        return {f for each in keeping.kept(self.times, now) for f in self.files(each)}

    def candidates(self, keeping: Keeping, now: int) -> set[str]:
        """The files that go: old ones of the table that no kept version needs."""
        kinds = self.kinds()
        mine = {each for each, kind in kinds.items() if kind == "data"}
        # Hadoop's checksum of a file goes when the file is gone.
        mine |= {e for e, kind in kinds.items() if kind == "crc" and checked(e) not in kinds}
        until = now - keeping.grace * DAY
        return {
            each
            for each in mine - self.live(keeping, now)
            if (self.root / each).stat().st_mtime_ns / 1_000_000 <= until
        }


def key_of(file: dict[str, Any]) -> Key:
    """The key of an add or a remove, by which the newest action wins."""
    vector = file.get("deletionVector")
    if not vector:
        return file["path"], ""
    offset = vector.get("offset")
    place = "" if offset is None else f"@{offset}"
    return file["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}{place}"


def vector_address(text: str) -> str:
    """The file of a deletion vector: a prefix, and 20 characters of Z85 that are a UUID."""
    prefix, code, raw = text[:-20], text[-20:], b""
    for start in range(0, 20, 5):
        number = 0
        for character in code[start : start + 5]:
            number = number * 85 + Z85.index(character)
        raw += number.to_bytes(4, "big")
    name = f"deletion_vector_{UUID(bytes=raw)}.bin"
    return f"{prefix}/{name}" if prefix else name


def kind_of(address: str, nested: set[str], columns: set[str], hidden: set[str]) -> str:
    """`data` (with deletion vectors and changes), or why a file of this name always stays."""
    names = address.split("/")
    if names[0] == "_delta_log":
        return "log"
    if any(address.startswith(each) for each in nested):
        return "nested"
    checksum = re.fullmatch(rf"\.(.*\.parquet|{VECTOR})\.crc", names[-1])
    for name in names[:-1] if checksum else names:
        known = name.startswith(("_change_data", "_delta_index")) or any(
            name.startswith(f"{each}=") for each in columns
        )
        if name in hidden or (name[0] in "._" and not known):
            return "hidden"
    if checksum:
        return "crc"
    is_ours = names[0] == "_change_data" or re.fullmatch(VECTOR, names[-1])
    return "data" if is_ours or address.endswith(".parquet") else "foreign"


def checked(checksum: str) -> str:
    """The file of which a file has the checksum."""
    folder, slash, name = checksum.rpartition("/")
    return f"{folder}{slash}{name.removeprefix('.').removesuffix('.crc')}"
