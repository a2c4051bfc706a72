"""What an incremental run looks at, against sets of addresses."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.arrow import texts
from ebbtide.formats.base import PROTECTED_SCHEMA
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.parts import ADDRESS_SCHEMA, Part, PartRows, read_part
from ebbtide.gc.planning.subtract import Relations, addresses_left, asked_keys, flagged
from ebbtide.gc.relations import protected
from ebbtide.gc.relations.inventory import INVENTORY_SCHEMA, judged_by, judged_keys, read_judged
from ebbtide.gc.relations.keys import keys_of, with_keys
from ebbtide.gc.relations.protected import protected_among
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import new_id
from ebbtide.storage import open_storage
from tests.support.engines import on_engines
from tests.support.randomized import randomized
from tests.support.world import START

ROWS = 40


@pytest.fixture
def folder(tmp_path: Any) -> RunFolder:
    """On a disk, where worker processes find it."""
    return RunFolder.inside(open_storage(str(tmp_path)), new_id())


def listed(folder: RunFolder, rng: random.Random, count: int) -> tuple[list[Part], set[str]]:
    """Parts of an inventory, every second one with keys, and the addresses by which their rows are
    judged: some twice, in one part or in two."""
    answer = PartRows()
    judged: set[str] = set()
    for number in range(count):
        rows = []
        for _ in range(rng.randint(1, ROWS)):
            address = f"data/{rng.randrange(ROWS)}"
            target = rng.choice([None, None, f"data/{rng.randrange(ROWS)}"])
            judged.add(target or address)
            rows.append({"address": address, "target": target, "kind": "object"})
        table = pa.Table.from_pylist(rows, schema=INVENTORY_SCHEMA)
        if number % 2:
            table = with_keys(table, judged_by(table))
        answer.wrote(folder, f"inventory/part-{number}.parquet", table)
    return answer.parts(), judged


@randomized("questions")
def test_rows_have_the_key_of_what_they_are_judged_by(folder: RunFolder, seed: int) -> None:
    """Whether their part has it or not."""
    rng = random.Random(seed)
    schema = pa.schema([INVENTORY_SCHEMA.field(name) for name in ("kind", "address")])
    parts, _ = listed(folder, rng, 4)
    for part in parts:
        whole = read_part(folder, part.name, part.checksum)
        expected = keys_of(judged_by(whole)).tolist()
        assert judged_keys(folder, part).tolist() == expected
        (table,) = read_judged(folder, [part], schema)
        assert table.column_names == ["kind", "address", "key"]
        assert table.column("key").to_pylist() == expected
        assert table.select(schema.names).equals(whole.select(schema.names))
    with_key = [read_part(folder, p.name or "").num_columns > len(INVENTORY_SCHEMA) for p in parts]
    assert {*with_key} == {True, False}


@on_engines("inline", "spark")
@randomized("questions by other engines")
def test_what_is_left_is_what_is_not_live(folder: RunFolder, engine: Engine, seed: int) -> None:
    rng = random.Random(seed)
    parts, judged = listed(folder, rng, rng.randrange(9))
    given = Relations(
        folder=folder,
        storage=folder.storage,
        inventory=parts,
        listed=Count(),
        live=None,
        protected=[],
        kinds=("object",),
        cutoff=START,
    )
    asked = asked_keys(engine, given)
    assert asked.tolist() == sorted(keys_of(pa.array(sorted(judged), pa.string())).tolist())

    is_live = sorted(rng.sample(sorted(judged), rng.randrange(len(judged) + 1)))
    answer = PartRows()
    table = pa.table([[*is_live, "data/other"]], schema=ADDRESS_SCHEMA)
    answer.wrote(folder, "live/part.parquet", table)
    live = flagged(engine, folder, answer.parts(), "live").select("judged").named("key")
    left = set(texts(addresses_left(engine, given, live)))
    # A temporary file stays with what is being written, not with what is there.
    assert judged - set(is_live) <= left <= judged


class _Reading:
    """Of metadata by which every other address is protected."""

    def __init__(self) -> None:
        self.asked: list[Sequence[str]] = []

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        assert among is not None
        for batch in among:
            self.asked.append(batch)
            rows = [{"address": each, "reason": "staged"} for each in batch if int(each) % 2]
            yield pa.Table.from_pylist(rows, schema=PROTECTED_SCHEMA)


@pytest.mark.parametrize("sizes", [[], [0], [1], [3, 4, 0, 9], [6]])
def test_all_are_asked_for_some_at_a_time(
    sizes: list[int], folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protected, "ASKED_AT_ONCE", 3)
    wanted = [str(number) for number in range(sum(sizes))]
    numbers = iter(wanted)
    answer = PartRows()
    for number, size in enumerate(sizes):
        # Every third is judged by another.
        judged = [next(numbers) for _ in range(size)]
        rows = [
            {"address": "tmp", "target": each} if int(each) % 3 == 0 else {"address": each}
            for each in judged
        ]
        table = pa.Table.from_pylist(rows, schema=INVENTORY_SCHEMA)
        answer.wrote(folder, f"part-{number}.parquet", table)
    reading: Any = _Reading()
    tables = list(protected_among(reading, folder, answer.parts()))
    assert [address for part in reading.asked for address in part] == wanted
    assert all(0 < len(part) <= 3 for part in reading.asked)
    found = [address for table in tables for address in texts(table.column("address"))]
    assert found == wanted[1::2]
