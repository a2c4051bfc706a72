"""A second reader of logs, for verification: it replays each version whole, action by action.

It shares nothing with the reader of runs but the storage. Not for: deciding or deleting.

Source: Delta Transaction Log Protocol, "Action Reconciliation".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.storage import Storage

_DIGITS: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_STATE: Final = "#state"


@dataclass(frozen=True, slots=True)
class DeltaWalk:
    """The second reader (`formats.capabilities.Walk`)."""

    storage: Storage

    def tree(self, tree_id: str) -> str:
        """Returns the address of a version's commit."""
        return tree_id

    def nodes(self, tree: str) -> list[str]:
        """Returns one node, which stands for the whole state of the version."""
        self.storage.get(tree)
        return [tree + _STATE]

    def content(self, node: str) -> Iterator[str]:
        """Yields the files of a version: data, deletion vectors, and the changes of its commit."""
        try:
            yield from self._content(node.removesuffix(_STATE))
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{node} cannot be replayed: {error!r}") from error

    def _content(self, tree: str) -> Iterator[str]:
        folder, _, name = tree.rpartition("/")
        table, version = folder.removesuffix("_delta_log"), int(name.removesuffix(".json"))
        live: dict[tuple[str, str], dict[str, Any]] = {}
        for actions in self._lists(f"{folder}/", version):
            for kind in ("remove", "add"):
                for action in (each[kind] for each in actions if each.get(kind)):
                    vector = action.get("deletionVector")
                    key = action["path"], "" if vector is None else _id_of(vector)
                    live.pop(key, None)
                    if kind == "add":
                        live[key] = action
        for action in live.values():
            yield self._address(table, action["path"])
            vector = action.get("deletionVector") or {"storageType": "i"}
            if vector["storageType"] == "p":
                yield self._address(table, vector["pathOrInlineDv"])
            elif vector["storageType"] == "u":
                yield table + _vector_name(vector["pathOrInlineDv"])
            elif vector["storageType"] != "i":
                raise ValueError(f"unknown deletion vector {vector['storageType']!r}")
        for each in self._read(f"{folder}/{name}"):
            if each.get("cdc"):
                yield self._address(table, each["cdc"]["path"])

    def _lists(self, log: str, version: int) -> Iterator[list[dict[str, Any]]]:
        """Yields the actions of the newest complete checkpoint, then those of each commit."""
        names = {
            str(each).removeprefix(log)
            for batch in self.storage.list(log, recursive=False)
            for each in batch.column("address").to_pylist()
        }
        first = version
        while first >= 0:
            found = self._checkpoint(log, names, first)
            if found is not None:
                yield found
                first += 1
                break
            if f"{first:020d}.json" not in names:
                raise ValueError(f"{log}{first:020d}.json is missing")
            first -= 1
        for number in range(max(first, 0), version + 1):
            yield self._read(f"{log}{number:020d}.json")

    def _checkpoint(self, log: str, names: set[str], version: int) -> list[dict[str, Any]] | None:
        parts = sorted(each for each in names if each.startswith(f"{version:020d}.checkpoint."))
        whole = [each for each in parts if each.count(".") != 4]
        choices = [[each] for each in whole]
        for count in {each.split(".")[3] for each in parts if each not in whole}:
            some = [each for each in parts if each not in whole and each.split(".")[3] == count]
            choices += [some] if len(some) == int(count) else []
        for chosen in choices:
            rows = [row for each in chosen for row in self._read(log + each)]
            named = [unquote(row["sidecar"]["path"]) for row in rows if row.get("sidecar")]
            cars = [f"{log}_sidecars/{PurePosixPath(each).name}" for each in named]
            if all(self.storage.head(each) is not None for each in cars):
                return [*rows, *(row for each in cars for row in self._read(each))]
        return None

    def _read(self, address: str) -> list[dict[str, Any]]:
        data = self.storage.get(address)
        if address.endswith(".json"):
            return [json.loads(line) for line in data.splitlines() if line.strip()]
        try:
            return pq.read_table(BytesIO(data)).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{address} is damaged: {error}") from error

    def _address(self, table: str, path: str) -> str:
        parts = urlsplit(path)
        is_url = bool(parts.scheme) and path[len(parts.scheme) + 1] == "/"
        text = unquote(parts.path if is_url else path)
        if not is_url and not text.startswith("/"):
            return table + text
        root = urlsplit(self.storage.url)
        same = {"s3a": "s3", "s3n": "s3", "abfs": "az", "abfss": "az"}.get(
            parts.scheme, parts.scheme
        )
        bucket = parts.netloc.partition("@")[0]
        is_here = not is_url or (same, bucket) == (root.scheme, root.netloc)
        place = unquote(root.path) if root.scheme == "file" else root.path
        return text.removeprefix(f"{place}/") if is_here else f"{same}://{bucket}{text}"


def _id_of(vector: dict[str, Any]) -> str:
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def _vector_name(text: str) -> str:
    prefix, code = text[:-20], text[-20:]
    numbers = (code[place : place + 5] for place in range(0, 20, 5))
    data = b"".join(
        sum(_DIGITS.index(each) * 85 ** (4 - n) for n, each in enumerate(group)).to_bytes(4, "big")
        for group in numbers
    )
    return f"{prefix}{'/' if prefix else ''}deletion_vector_{uuid.UUID(bytes=data)}.bin"
