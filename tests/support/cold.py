"""A directory whose listings say a storage class of each file, as those of a bucket do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.storage import LISTING_SCHEMA, LocalStorage

PLACE = LISTING_SCHEMA.get_field_index("storage_class")


def list_as(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make all files of directories have the storage class `name`."""
    real = LocalStorage.list

    def listed(self: LocalStorage, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in real(self, *args, **options):
            classes = pa.repeat(pa.scalar(name), batch.num_rows)
            yield batch.set_column(PLACE, LISTING_SCHEMA.field(PLACE), classes)

    monkeypatch.setattr(LocalStorage, "list", listed)
