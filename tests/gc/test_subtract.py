"""The subtraction, on relations written by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ebbtide.arrow import texts
from ebbtide.gc.counts import Count
from ebbtide.gc.inventory import INVENTORY_SCHEMA
from ebbtide.gc.mark import ADDRESS_SCHEMA
from ebbtide.gc.parts import Part, PartRows, read_part
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.subtract import Subtracted, subtract
from ebbtide.storage import open_storage
from tests.support.spark import shared_session

pytestmark = pytest.mark.spark

CUTOFF = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
OLD = CUTOFF - timedelta(days=1)


class Relations:
    """The three relations as parts in a folder."""

    def __init__(self, directory: Path) -> None:
        self.folder = RunFolder(open_storage(str(directory)), "run/")
        self.rows: list[tuple[str, int, datetime, str, str | None, str | None]] = []

    def listed(
        self,
        address: str,
        *,
        modified: datetime = OLD,
        kind: str = "object",
        target: str | None = None,
    ) -> None:
        self.rows.append((address, len(address), modified, kind, None, target))

    def subtract(self, *, live: list[str], protected: list[str]) -> Subtracted:
        columns = [list(column) for column in zip(*self.rows, strict=True)]
        inventory = self.write("inventory", pa.table(columns, schema=INVENTORY_SCHEMA))
        return subtract(
            shared_session(),
            folder=self.folder,
            inventory=inventory,
            live=self.write("live", pa.table([live], schema=ADDRESS_SCHEMA)),
            protected=self.write("kept", pa.table([protected], schema=ADDRESS_SCHEMA)),
            kinds=("tree", "object", "temporary"),
            cutoff=CUTOFF,
        )

    def write(self, name: str, table: pa.Table) -> list[Part]:
        """Two parts, the first rows and the rest."""
        answer = PartRows()
        for number, piece in enumerate((table.slice(0, 2), table.slice(2))):
            answer.wrote(self.folder, f"{name}-{number}.parquet", piece)
        return answer.parts()

    def candidates(self, found: Subtracted) -> dict[str, set[str]]:
        """Addresses by kind, as the parts have them."""
        by_kind: dict[str, set[str]] = {}
        for part in found.candidates:
            assert part.name is not None
            table = read_part(self.folder, part.name, part.checksum)
            by_kind.setdefault(part.group, set()).update(texts(table.column("address")))
        return by_kind


def test_each_file_is_in_one_class(tmp_path: Path) -> None:
    relations = Relations(tmp_path)
    relations.listed("live")
    relations.listed("staged")
    relations.listed("young", modified=CUTOFF)
    relations.listed("garbage")
    relations.listed("old tree", kind="tree")
    relations.listed("stranger", kind="foreign")

    found = relations.subtract(live=["live", "elsewhere"], protected=["staged", "live"])

    assert relations.candidates(found) == {"object": {"garbage"}, "tree": {"old tree"}}
    assert found.counts == {
        "live": Count(1, 4),
        "protected": Count(1, 6),
        "young": Count(1, 5),
        "candidate": Count(2, 15),
    }


def test_a_time_in_whole_seconds_stands_for_the_whole_second(tmp_path: Path) -> None:
    relations = Relations(tmp_path)
    relations.listed("exact", modified=CUTOFF - timedelta(microseconds=1))
    relations.listed("truncated", modified=CUTOFF.replace(microsecond=0))
    relations.listed("second before", modified=CUTOFF.replace(microsecond=0) - timedelta(seconds=1))

    found = relations.subtract(live=[], protected=[])

    assert relations.candidates(found) == {"object": {"exact", "second before"}}


def test_a_temporary_file_is_protected_with_its_target_alone(tmp_path: Path) -> None:
    relations = Relations(tmp_path)
    relations.listed("written#1", kind="temporary", target="written")
    relations.listed("done#1", kind="temporary", target="done")
    relations.listed("done")

    found = relations.subtract(live=["done"], protected=["written"])

    assert relations.candidates(found) == {"temporary": {"done#1"}}


def test_nothing_live_or_protected(tmp_path: Path) -> None:
    relations = Relations(tmp_path)
    relations.listed("garbage")

    found = relations.subtract(live=[], protected=[])

    assert found.counts["candidate"] == Count(1, 7)
