"""What `explain` tells of Iceberg tables: what removed a file, and how long their own rules keep
it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.table import Table

from ebbtide.audit.answers import ExplainedAddress, ExplainedCommit
from ebbtide.audit.explain import Explainer
from ebbtide.errors import NotFound
from ebbtide.formats.iceberg.metadata import (
    DamagedMetadataError,
    TableMetadata,
    TableRef,
    TableSnapshot,
)
from ebbtide.formats.iceberg.rules import ending, kept_by_rules
from ebbtide.model import EPOCH
from tests.formats.iceberg.histories import litter
from tests.formats.iceberg.warehouse import GRACE, Warehouse, request, rows
from tests.support.randomized import randomized

AGE = "history.expire.max-snapshot-age-ms"
MS = timedelta(milliseconds=1)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Warehouse]:
    with closing(Warehouse(tmp_path)) as made:
        yield made


def explained(lake: Warehouse, what: str) -> ExplainedAddress | ExplainedCommit:
    return Explainer(lake.open(), engine=lake.engine, grace=GRACE).explain(what)


def told(lake: Warehouse, what: str, state: str) -> str:
    found = explained(lake, what)
    assert found.state == state
    return " / ".join(found.history)


def data_of(lake: Warehouse, table: Table) -> str:
    [file] = [each.file.file_path for each in table.scan().plan_files()]
    return lake.relative(file)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_file_that_a_snapshot_removed(lake: Warehouse, version: str) -> None:
    """While snapshots need it, after their expiry, and after the run that took it."""
    table = lake.table("events", **{AGE: "0", "format-version": version})
    table.append(rows(1, 2))
    file, first = data_of(lake, table), table.metadata.snapshots[0].snapshot_id
    [old_list] = [each for each in lake.files() if "snap-" in each]
    table.delete("id > 0")
    deleting = table.metadata.snapshots[1].snapshot_id
    table.append(rows(3))
    kept = told(lake, file, "kept")
    assert kept.endswith(f"An expiry by its own rules can remove snapshot {first} now")
    assert "branch main: no date ends that" in told(lake, "db.events@main", "kept")
    orphans = sorted(each for each in litter(lake, table, 7) if "/data/" in each)
    lake.expire(request(), "e" * 32)
    # The snapshot that removed the file expired with it, so that only the record knows both.
    unneeded = told(lake, file, "unneeded")
    assert f"expiry {'e' * 32} of " in unneeded
    assert f"UTC removed snapshot {first} (append, " in unneeded
    assert "which needed it" in unneeded
    assert str(deleting) not in unneeded
    assert f"snapshot {first} (append" in told(lake, old_list, "unneeded")
    for name in (str(first), f"{first}:db.events"):
        gone = told(lake, name, "forgotten")
        assert f"UTC removed snapshot {first} (append, " in gone
        assert f"'ebbtide expire iceberg:lake --undo {'e' * 32}' lists it again" in gone
    with pytest.raises(NotFound, match="snapshot '17' at"):
        explained(lake, "17")
    assert told(lake, orphans[0], "unneeded").startswith("no listed snapshot names it")
    lake.age()
    lake.swept(quarantine=timedelta(days=7))
    assert "2 snapshots of db.events that may have needed it" in told(lake, file, "gone")
    assert f"snapshot {first} (append" in told(lake, old_list, "gone")


def test_why_a_snapshot_is_kept(lake: Warehouse) -> None:
    table = lake.table("events")
    for number in range(2):
        table.append(rows(number))
    old, dangling = (each.snapshot_id for each in table.metadata.snapshots)
    table.append(rows(3))

    def leave(document: dict[str, Any]) -> None:
        document["snapshots"][2]["parent-snapshot-id"] = old

    lake.swap("db.events", leave)
    reasons = {each: explained(lake, str(each)) for each in (old, dangling)}
    assert [getattr(each, "reason", None) for each in reasons.values()] == [
        "on branch db.events@main, where everything is kept",
        "dangling, and the default is to keep everything",
    ]


def test_a_file_whose_removing_snapshot_is_listed(lake: Warehouse) -> None:
    table = lake.table("events", **{AGE: "0"})
    table.append(rows(1, 2))
    file = data_of(lake, table)
    table.delete("id > 0")
    deleting = table.metadata.snapshots[1].snapshot_id
    lake.expire(request())
    removed, expired = explained(lake, file).history
    assert removed.startswith(f"snapshot {deleting} (delete, ")
    assert removed.endswith(" of db.events removed it")
    assert expired.startswith("expiry ")
    lake.age()
    lake.swept(quarantine=timedelta(days=7))
    assert removed in explained(lake, file).history
    current = table.refresh().metadata_location
    assert not explained(lake, lake.relative(current)).history


def ages(random: Random) -> timedelta | None:
    return random.choice([None, random.randint(1, 6) * MS])


def some_table(random: Random) -> TableMetadata:
    """A table with branches and tags that end, and with dates that may fall."""
    count = random.randint(1, 6)
    snapshots = {
        each: TableSnapshot(
            each,
            max(each - random.randint(1, 3), 0) or None,
            EPOCH + random.randint(0, 9) * MS,
            f"{each}.avro",
        )
        for each in range(1, count + 1)
    }
    refs = [TableRef("main", "branch", count, max_snapshot_age=ages(random))]
    refs += [
        TableRef(
            f"r{each}",
            random.choice(["branch", "tag"]),
            random.randint(1, count),
            max_ref_age=ages(random),
            max_snapshot_age=ages(random),
            min_snapshots=random.choice([None, 1, 2]),
        )
        for each in range(random.randint(0, 3))
    ]
    return TableMetadata(
        address="m",
        uuid="u",
        version=2,
        location="t",
        at=EPOCH,
        snapshots=snapshots,
        refs=tuple(refs),
        log=(),
        statistics=(),
        folders=(),
        properties={AGE: str(random.randint(1, 30))},
    )


def check_ending(table: TableMetadata, asked: frozenset[int], start: datetime) -> None:
    """Against the rules at each millisecond. Nothing changes in between."""
    kept = [
        asked & kept_by_rules(table, now=start + n * MS, older_than=None).snapshots
        for n in range(60)
    ]
    end = ending(table, asked, now=start)
    first = next((n for n, each in enumerate(kept) if not each), None)
    if first is None:
        assert (end.at, end.kept) == (None, kept[-1])
    else:
        assert end.at is not None
        assert start + (first - 1) * MS < end.at <= start + first * MS


@randomized("outlooks")
def test_when_rules_keep_none_of_some_snapshots(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        table = some_table(random)
        count = random.randint(1, len(table.snapshots))
        asked = frozenset(random.sample([*table.snapshots], count))
        check_ending(table, asked, EPOCH + random.randint(0, 15) * MS)


def test_a_snapshot_that_rules_keep_again() -> None:
    """Its branch, which keeps snapshots for a shorter time than the table, ends."""
    dates = {1: (None, 5), 2: (1, 6), 3: (None, 1)}
    table = replace(
        some_table(Random(1)),
        snapshots={
            each: TableSnapshot(each, parent, EPOCH + at * MS, f"{each}.avro")
            for each, (parent, at) in dates.items()
        },
        refs=(
            TableRef("main", "branch", 3),
            TableRef("side", "branch", 2, max_ref_age=5 * MS, max_snapshot_age=MS),
        ),
        properties={AGE: "12"},
    )
    for start in range(5, 20):
        check_ending(table, frozenset({1}), EPOCH + start * MS)


@pytest.mark.parametrize("age", [str(10**400), -(10**400), "-1", float("inf")])
def test_ages_that_no_date_has(age: object) -> None:
    table = replace(some_table(Random(1)), properties={AGE: age})
    if age == float("inf"):
        with pytest.raises(DamagedMetadataError, match="is no number"):
            kept_by_rules(table, now=EPOCH, older_than=None)
    else:
        now = datetime(2026, 11, 3, tzinfo=UTC)
        assert ending(table, table.snapshots.keys(), now=now).kept


def test_rules_without_an_end(lake: Warehouse) -> None:
    table = lake.table("events", **{AGE: str(2**63 - 1)})
    table.append(rows(1))
    file, first = data_of(lake, table), table.metadata.snapshots[0].snapshot_id
    table.overwrite(rows(2))
    assert f"keep snapshot {first}: no date ends that" in told(lake, file, "kept")
    lake.swap("db.events", lambda document: document["properties"].update({AGE: "soon"}))
    assert "cannot be read" in told(lake, file, "kept")
