"""A second reader of manifest lists and manifests, for verification: PyIceberg's own.

It shares nothing with the reader of runs but the storage and the spellings of its root. Not for:
deciding or deleting.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pyiceberg.manifest import ManifestContent, ManifestFile, read_manifest_list

from ebbtide.errors import EbbtideError
from ebbtide.formats.iceberg.layout import file_at
from ebbtide.formats.iceberg.metadata import unpacked
from ebbtide.formats.iceberg.places import Places
from ebbtide.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputFile


@dataclass(frozen=True, slots=True)
class IcebergWalk:
    """The second reader (`formats.base.Walk`)."""

    storage: Storage
    places: Places

    def tree(self, tree_id: str) -> str:
        """Returns the address of the file that lists a snapshot's manifests, with the snapshot's id
        if it is a metadata file."""
        return tree_id

    def nodes(self, tree: str) -> list[str]:
        """Returns the manifests of a snapshot."""
        address, _, snapshot_id = tree.partition("#")
        try:
            if snapshot_id:
                found = json.loads(unpacked(file_at(self.storage, address)))
                named = next(
                    each["manifests"]
                    for each in found["snapshots"]
                    if str(each["snapshot-id"]) == snapshot_id
                )
            else:
                rows = read_manifest_list(cast("InputFile", _File(self.storage, address)))
                named = [row.manifest_path for row in rows]
        except EbbtideError:
            raise
        except Exception as error:  # PyIceberg raises what a damaged file leads it to
            raise ValueError(f"{tree} is damaged: {error}") from error
        return sorted({self.places.address(each) for each in named})

    def content(self, node: str) -> Iterator[str]:
        """Yields the data and delete files that a manifest names."""
        files = cast("FileIO", _Files(self.storage))
        # The fields that entries inherit are of no interest here.
        manifest = ManifestFile.from_args(
            manifest_path=node,
            manifest_length=0,
            partition_spec_id=0,
            added_snapshot_id=0,
            sequence_number=0,
            min_sequence_number=0,
            content=ManifestContent.DATA,
        )
        try:
            entries = manifest.fetch_manifest_entry(files)
        except EbbtideError:
            raise
        except Exception as error:
            raise ValueError(f"{node} is damaged: {error}") from error
        for entry in entries:
            yield self.places.address(entry.data_file.file_path)


@dataclass(frozen=True, slots=True)
class _File:
    """As much of PyIceberg's `InputFile` as its readers of lists and manifests use."""

    storage: Storage
    location: str

    def open(self) -> io.BytesIO:
        return io.BytesIO(file_at(self.storage, self.location))


@dataclass(frozen=True, slots=True)
class _Files:
    """As much of PyIceberg's `FileIO` as these readers use."""

    storage: Storage

    def new_input(self, location: str) -> _File:
        return _File(self.storage, location)
