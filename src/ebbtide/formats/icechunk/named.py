"""Finds the names of an Icechunk repository's files: keys of chunks, arrays of manifests, messages.

Not for: what keeps a file. A file that cannot be read gives no names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from ebbtide.errors import NotFound, Refused
from ebbtide.formats.file_names import READERS, FileName, FileNames, NodeScan, names_by
from ebbtide.formats.icechunk.files import FileType, unpack
from ebbtide.formats.icechunk.layout import (
    LOGS_PREFIX,
    MANIFESTS_PREFIX,
    SNAPSHOTS_PREFIX,
    load_snapshot,
    refusing,
)
from ebbtide.formats.icechunk.snapshots import CHUNKS_PREFIX, chunk_keys, read_arrays
from ebbtide.model import Commit
from ebbtide.storage import Storage


@dataclass(frozen=True, slots=True)
class NamedManifest:
    """A manifest, the paths of its arrays in a snapshot, and those of all arrays by node id."""

    manifest_id: str
    arrays: Sequence[str] = field(compare=False)
    paths: Mapping[bytes, str] = field(compare=False)


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files of one question, by their addresses."""

    storage: Storage
    wanted: frozenset[str]

    def names(self, commits: Sequence[Commit]) -> FileNames:
        """Returns the names of the files, each by the first of the snapshots that has it."""
        chunks = sorted(each for each in self.wanted if each.startswith(CHUNKS_PREFIX))
        asked = pa.array(chunks, pa.string())

        def named(node: NamedManifest) -> Sequence[tuple[str, str]] | None:
            address = f"{MANIFESTS_PREFIX}{node.manifest_id}"
            found = [(address, ", ".join(each.strip("/") for each in node.arrays))]
            if not chunks:
                return found
            try:
                with refusing(self.storage, address, what="node"):
                    payload = unpack(self.storage.get(address), FileType.MANIFEST).payload
                    return [*found, *chunk_keys(payload, node.paths, asked)]
            except (Refused, NotFound):
                return None

        scan = NodeScan(commits, nodes_of=self._manifests, read=named)
        return names_by(scan, self.wanted, dict(self._messages()))

    def _messages(self) -> Iterator[tuple[str, FileName]]:
        """Yields the addresses of snapshots and logs with the messages of their snapshots."""
        places = {
            address: address.removeprefix(prefix)
            for address in sorted(self.wanted)
            for prefix in (SNAPSHOTS_PREFIX, LOGS_PREFIX)
            if address.startswith(prefix)
        }
        with ThreadPoolExecutor(READERS) as readers:
            messages = list(readers.map(self._message, places.values()))
        for (address, snapshot_id), message in zip(places.items(), messages, strict=True):
            if message is not None:
                yield address, FileName(message, snapshot_id)

    def _message(self, snapshot_id: str) -> str | None:
        try:
            return load_snapshot(self.storage, snapshot_id).message
        except (Refused, NotFound):
            return None

    def _manifests(self, commit: Commit) -> Sequence[NamedManifest] | None:
        address = f"{SNAPSHOTS_PREFIX}{commit.tree_id}"
        try:
            with refusing(self.storage, address, what="tree"):
                found = read_arrays(self.storage.get(address), commit.tree_id)
        except (Refused, NotFound):
            return None
        return [
            NamedManifest(each, found.by_manifest[each], found.paths) for each in found.by_manifest
        ]
