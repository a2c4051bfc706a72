"""The subtraction where what stays fits into a process: looked up, whole, and not joined.

Each task reads the keys of all that is live or protected, and goes through its share of the
inventory, so that nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.gc.candidates import (
    CLASSES,
    CandidateWriter,
    Relations,
    Subtracted,
    by_use,
    latest_micros,
    micros_of,
)
from ebbtide.gc.counts import Count
from ebbtide.gc.engine import Engine
from ebbtide.gc.inventory import INVENTORY_SCHEMA, in_closed_slices, judged_by, read_judged
from ebbtide.gc.keys import KeyArray, KeySet, rows_of
from ebbtide.gc.meter import advance
from ebbtide.gc.parts import Part, PartRows, split
from ebbtide.gc.sizing import sized

_CLASS: Final = "class "
_REQUIRED: Final = "required"
_SEEN: Final = "required and seen"
KEPT_PER_TASK: Final = 100_000
"""With more to look things up in, there are no more tasks than cores: each has to read it."""


def look_up(engine: Engine, given: Relations) -> Subtracted:
    """As `subtract`."""
    folder, kinds = given.folder, given.kinds
    kept_count = rows_of([*given.live, *given.protected])
    count = engine.task_count if kept_count <= KEPT_PER_TASK else engine.cores

    def work(number: int, task: Sequence[Part], answer: PartRows) -> None:
        questions = rows_of(task)
        live = KeySet.read(folder, given.live, questions=questions)
        required = KeySet.read(folder, given.required)
        protected = KeySet.read(folder, given.protected, questions=questions)
        answer.counted(len(required), bytes_total=0, group=_REQUIRED)
        untraced = KeySet.read(folder, given.untraced)
        purged = given.read_purged()
        writer = CandidateWriter(folder, kinds, number, answer)
        for table in read_judged(folder, task, INVENTORY_SCHEMA):
            advance(table.num_rows)
            target = table.column("target")
            keys: KeyArray = table.column("key").to_numpy()
            is_purged = np.asarray(pc.is_in(judged_by(table), value_set=purged))
            own = pc.is_null(target).to_numpy()
            is_live = live.has(keys) & own
            seen = int(np.count_nonzero(required.has(keys) & own))
            answer.counted(seen, bytes_total=0, group=_SEEN)
            is_protected = protected.has(keys)
            listed = pc.is_in(table.column("kind"), value_set=pa.array(kinds, pa.string()))
            stays = (is_live & ~is_purged) | is_protected
            table = sized(given.storage, table, np.asarray(listed) & ~stays)
            settled = pa.array(is_protected & ~untraced.has(keys))
            classes = _classes(table, is_live, is_protected, is_purged, cutoff=given.cutoff)
            for name in CLASSES:
                of_class = pc.and_(listed, pc.equal(classes, pa.scalar(name, pa.string())))
                rows = table.filter(of_class)
                size = pc.sum(rows.column("size_bytes")).as_py() or 0
                has_all = not rows.column("size_bytes").null_count
                answer.counted(rows.num_rows, bytes_total=size, sized=has_all, group=_CLASS + name)
                if name == "candidate" and rows.num_rows:
                    writer.add(rows)
                elif name in ("protected", "young") and given.closed_after is not None:
                    known = rows.append_column("settled", settled.filter(of_class))
                    if name == "young":  # of what is there no more nothing is to be remembered
                        known = known.filter(pc.is_valid(known.column("last_modified")))
                    writer.remember(in_closed_slices(known, given.closed_after))
        writer.finish()

    engine.meter.begin("files", rows_of(given.inventory))
    answers = engine.run(split(given.inventory, tasks=count), work)
    counts = dict.fromkeys(CLASSES, Count())
    for part in answers:
        if part.name is None and part.group.startswith(_CLASS):
            name = part.group.removeprefix(_CLASS)
            counts[name] += part.count
    required = {part.rows for part in answers if part.name is None and part.group == _REQUIRED}
    seen = sum(part.rows for part in answers if part.name is None and part.group == _SEEN)
    return Subtracted(
        **by_use(answers),
        counts=counts,
        all_listed=required == {seen},
    )


def _classes(
    table: pa.Table, is_live: Any, is_protected: Any, is_purged: Any, *, cutoff: datetime
) -> Any:
    """The class of each row; the others are masks of numpy."""
    dates = table.column("last_modified")
    is_young = latest_micros(dates) >= micros_of(cutoff)
    is_gone = np.asarray(pc.is_null(dates))
    conditions = [is_live & ~is_purged, is_protected, (is_young & ~is_purged) | is_gone]
    places = np.select(conditions, [0, 1, 2], default=3)
    return pa.array(CLASSES, pa.string()).take(pa.array(places, pa.int64()))
