"""The subtraction, on relations written by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from ebbtide.arrow import texts
from ebbtide.errors import Refused
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine, Frame
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_part
from ebbtide.gc.planning import subtract as subtraction
from ebbtide.gc.planning.subtract import Subtracted, flagged, subtract
from ebbtide.gc.relations import inventory, keys
from ebbtide.gc.relations.inventory import INVENTORY_SCHEMA
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import ObjectInfo, Storage, open_storage
from ebbtide.storage.base import sizes_of
from tests.support.engines import ENGINES, INLINE, on_engines
from tests.support.randomized import randomized

CUTOFF = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
OLD = CUTOFF - timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Objects:
    """A storage that knows rows by their addresses, but for what is gone."""

    rows: Mapping[str, tuple[str, int, datetime, str, str | None, str | None]]
    gone: Set[str]

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        there = [None if name in self.gone else self.rows[name] for name in addresses]
        return sizes_of(addresses, [row and ObjectInfo(*row[:3]) for row in there])


class Relations:
    def __init__(self, directory: Path, engine: Engine = INLINE) -> None:
        self.engine = engine
        self.folder = RunFolder(open_storage(str(directory)), "run/")
        self.rows: list[tuple[str, int, datetime, str, str | None, str | None]] = []
        self.named: set[str] = set()
        """What was listed without size and date."""
        self.gone: set[str] = set()
        """What of it was there no more when it was asked for."""

    def listed(
        self,
        address: str,
        *,
        modified: datetime = OLD,
        kind: str = "object",
        target: str | None = None,
    ) -> None:
        self.rows.append((address, len(address), modified, kind, None, target))

    def subtract(
        self,
        *,
        live: list[str],
        protected: list[str],
        purged: list[str] | None = None,
        keyed: Callable[[pa.Table], pa.Table] = lambda inventory: inventory,
    ) -> Subtracted:
        rows = [(r[0], None, None, *r[3:]) if r[0] in self.named else r for r in self.rows]
        columns = [list(column) for column in zip(*rows, strict=True)]
        inventory = self.write("inventory", keyed(pa.table(columns, schema=INVENTORY_SCHEMA)))
        kinds = ("tree", "object", "temporary")
        listed = [row for row in rows if row[3] in kinds]
        sizes = [row[1] for row in listed]
        given = subtraction.Relations(
            folder=self.folder,
            storage=cast("Storage", Objects({row[0]: row for row in self.rows}, self.gone)),
            inventory=inventory,
            listed=Count(len(listed), sum(s or 0 for s in sizes), None not in sizes),
            live=self.keys("live", live),
            protected=self.write("kept", pa.table([protected], schema=ADDRESS_SCHEMA)),
            kinds=kinds,
            cutoff=CUTOFF,
            purged=self.write("purged", pa.table([purged or []], schema=ADDRESS_SCHEMA)),
        )
        return subtract(self.engine, given)

    def keys(self, name: str, addresses: list[str]) -> Frame:
        parts = self.write(name, pa.table([addresses], schema=ADDRESS_SCHEMA))
        return flagged(self.engine, self.folder, parts, name).select("judged").named("key")

    def write(self, name: str, table: pa.Table) -> list[Part]:
        """Two parts, the first rows and the rest."""
        answer = PartRows()
        for number, piece in enumerate((table.slice(0, 2), table.slice(2))):
            answer.wrote(self.folder, f"{name}-{number}.parquet", piece)
        return answer.parts()

    def candidates(self, found: Subtracted) -> dict[str, set[str]]:
        by_kind: dict[str, set[str]] = {}
        for part in found.candidates:
            table = read_part(self.folder, part.name, part.checksum)
            by_kind.setdefault(part.kind, set()).update(texts(table.column("address")))
        return by_kind


both = on_engines("joins", "inline")


@pytest.mark.spark
@randomized("subtractions")
def test_all_engines_find_what_the_definition_says(tmp_path: Path, seed: int) -> None:
    found = [check_subtraction(tmp_path / name, engine, seed) for name, engine in ENGINES.items()]
    assert all(each.counts == found[0].counts for each in found)


@randomized("subtractions in the process")
def test_it_finds_what_the_definition_says(tmp_path: Path, seed: int) -> None:
    check_subtraction(tmp_path, INLINE, seed)


def check_subtraction(directory: Path, engine: Engine, seed: int) -> Subtracted:
    """A time in whole seconds stands for the whole second. A temporary file is protected with its
    target alone."""
    choices = random.Random(seed)
    names = [f"file {number}" for number in range(40)]
    live, protected, purged = ([n for n in names if choices.random() < 0.4] for _ in range(3))
    relations = Relations(directory, engine)
    expected: dict[str, set[str]] = {}
    classes = Counter[str]()
    for name in choices.sample(names, 30):
        kind = choices.choice(["object", "tree", "temporary", "foreign"])
        target = choices.choice(names) if kind == "temporary" else None
        seconds = choices.choice([-86400, -1, -0.5, -0.000001, 0, 1])
        modified = CUTOFF + timedelta(seconds=seconds)
        relations.listed(name, modified=modified, kind=kind, target=target)
        latest = modified + timedelta(microseconds=0 if modified.microsecond else 999_999)
        key = target or name
        if kind == "foreign":
            continue
        if key in live and target is None and key not in purged:
            classes["live"] += 1
        elif key in protected:
            classes["protected"] += 1
        elif latest >= CUTOFF and key not in purged:
            classes["young"] += 1
        else:
            classes["candidate"] += 1
            expected.setdefault(kind, set()).add(name)
    found = relations.subtract(live=live, protected=protected, purged=purged)
    assert {name: count.objects for name, count in found.counts.items() if count.objects} == classes
    assert relations.candidates(found) == expected
    return found


@on_engines()
@randomized("subtractions")
def test_what_is_asked_for_later_is_judged_alike(tmp_path: Path, engine: Engine, seed: int) -> None:
    """Whichever rows were listed by their names alone; what vanished since counts as young. Of
    those rows `staged` is always one that stays, and `useless` one that goes."""
    choices = random.Random(seed)
    names = [f"file {number}" for number in range(60)]
    live, protected, purged = ([n for n in names if choices.random() < 0.3] for _ in range(3))
    protected.append("staged")
    found: list[Subtracted] = []
    going: list[dict[str, set[str]]] = []
    for share in (0.0, 0.6):
        relations = Relations(tmp_path / f"{share}", engine)
        choices.seed(seed)
        for name in names:
            modified = CUTOFF + timedelta(seconds=choices.choice([-86400, 1]))
            kind = choices.choice(["object", "temporary", "foreign"])
            target = choices.choice(names) if kind == "temporary" else None
            relations.listed(name, modified=modified, kind=kind, target=target)
        relations.named = {name for name in names if choices.random() < share}
        relations.listed("staged")
        relations.listed("useless")
        if share:
            relations.named |= {"staged", "useless"}
        found.append(relations.subtract(live=live, protected=protected, purged=purged))
        going.append(relations.candidates(found[-1]))
    assert going[0] == going[1]
    assert not found[1].counts["protected"].sized
    for name, count in found[0].counts.items():
        other = found[1].counts[name]
        assert other.objects == count.objects
        # Of what goes, or is young, each was asked for.
        assert other.sized or name in ("live", "protected")
        assert other.bytes_total == count.bytes_total or not other.sized

    relations.gone = {"useless", *(name for name in names if choices.random() < 0.5)}
    relations.gone &= relations.named
    after = relations.subtract(live=live, protected=protected, purged=purged)
    vanished = {name for names in going[0].values() for name in names} & relations.gone
    assert "useless" in vanished
    left = {kind: names - vanished for kind, names in going[0].items()}
    assert relations.candidates(after) == {kind: names for kind, names in left.items() if names}
    for name, count in after.counts.items():
        more = {"young": len(vanished), "candidate": -len(vanished)}.get(name, 0)
        assert count.objects == found[0].counts[name].objects + more


@both
def test_what_was_purged_goes_by_its_address_and_not_by_its_key(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_key(addresses: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.zeros(len(addresses), np.int64)

    if engine is INLINE:
        for module in (inventory, keys, subtraction):
            monkeypatch.setattr(module, "keys_of", one_key)
    relations = Relations(tmp_path, engine)
    for name in ("gone", "live", "young"):
        relations.listed(name, modified=CUTOFF if name == "young" else OLD)

    found = relations.subtract(live=["live", "gone", "young"], protected=[], purged=["gone"])

    assert relations.candidates(found) == {"object": {"gone"}}
    assert found.counts["live"].objects == 2


@both
def test_keys_that_an_earlier_run_wrote_are_those_of_the_files(
    tmp_path: Path, engine: Engine
) -> None:
    """Else nothing goes: with keys of another kind all would look dead."""
    relations = Relations(tmp_path, engine)
    for name in ("live", "kept", "garbage", "young"):
        relations.listed(name, modified=CUTOFF if name == "young" else OLD)
    relations.listed("other#1", kind="temporary", target="live")
    kept: dict[str, Any] = {"live": ["live"], "protected": ["kept"]}

    def keyed(table: pa.Table) -> pa.Table:
        return keys.with_keys(table, inventory.judged_by(table))

    def otherwise(table: pa.Table) -> pa.Table:
        column = keyed(table).column("key")
        return table.append_column("key", pa.array(column.to_numpy() + 1))

    found = relations.subtract(**kept, keyed=keyed)
    assert relations.candidates(found) == {"object": {"garbage"}, "temporary": {"other#1"}}
    with pytest.raises(Refused, match="--mode clean") as refused:
        relations.subtract(**kept, keyed=otherwise)
    assert refused.value.kind == "plan_corrupt"
