"""Which snapshots a table's own rules keep. Pure.

Source: Iceberg table specification, "Snapshot Retention Policy"; `RemoveSnapshots` of Iceberg's
Java library 1.12, for refs and ages at their limits. An age equal to a limit is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from ebbtide.formats.iceberg.metadata import (
    FOREVER_MS,
    DamagedMetadataError,
    TableMetadata,
    TableRef,
    age_of,
)
from ebbtide.model import ONE_MICROSECOND

MAIN: Final = "main"
_MAX_REF_AGE: Final = "history.expire.max-ref-age-ms"
_MAX_SNAPSHOT_AGE: Final = "history.expire.max-snapshot-age-ms"
_MIN_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
_SNAPSHOT_AGE_MS: Final = 5 * 86_400_000
_FOREVER: Final = age_of(FOREVER_MS)
_FLINK_JOB: Final = "flink.job-id"
_FLINK_CHECKPOINT: Final = "flink.max-committed-checkpoint-id"


@dataclass(frozen=True, slots=True)
class KeptByRules:
    """The snapshots that stay by a table's rules, and the refs that do not."""

    snapshots: frozenset[int]
    dropped_refs: tuple[str, ...]


def kept_by_rules(
    table: TableMetadata, *, now: datetime, older_than: datetime | None
) -> KeptByRules:
    """Returns what stays at `now`. `older_than` takes the place of the table's own age of
    snapshots; branches with an age of their own keep that. Raises DamagedMetadataError for a
    property that is no number."""
    bound = older_than or now - _age(table, _MAX_SNAPSHOT_AGE, _SNAPSHOT_AGE_MS)
    dropped = [ref for ref in table.refs if _is_over(ref, table, now)]
    kept = set[int]()
    referenced = set[int]()
    for ref in table.refs:
        if ref in dropped:
            continue
        history = [ref.snapshot_id] if ref.kind == "tag" else list(_history(ref, table))
        referenced.update(history)
        kept.update(history if ref.kind == "tag" else _kept_of(ref, history, table, bound, now))
    kept.update(
        each.snapshot_id
        for each in table.snapshots.values()
        if each.snapshot_id not in referenced and each.at >= bound
    )
    return KeptByRules(frozenset(kept | _of_flink(table)), tuple(ref.name for ref in dropped))


@dataclass(frozen=True, slots=True)
class Ending:
    """The first instant at which rules keep none of some snapshots. If there is none, `at` is None,
    and `kept` are those that stay for good."""

    at: datetime | None
    kept: frozenset[int] = frozenset()


def ending(table: TableMetadata, snapshots: Collection[int], *, now: datetime) -> Ending:
    """Returns when a table's rules keep none of some snapshots any more, from `now` on, if the
    table does not change. Raises as `kept_by_rules`.

    While the same refs count, the kept snapshots only become fewer. When a ref ends, its snapshots
    may be kept again, so that each interval between such ends is searched on its own.
    """
    own = _age(table, _MAX_SNAPSHOT_AGE, _SNAPSHOT_AGE_MS)
    ages = {own, *(ref.max_snapshot_age for ref in table.refs if ref.max_snapshot_age is not None)}
    dates = {each.at for each in table.snapshots.values()}
    of_refs = _age(table, _MAX_REF_AGE, FOREVER_MS)
    heads = [(table.snapshots[each.snapshot_id].at, each) for each in table.refs]
    ends = {end for at, ref in heads for end in _passed(at, ref.max_ref_age or of_refs, now)}
    steps = {end for at in dates for age in ages for end in _passed(at, age, now)}
    later = sorted({now, *ends, *steps})
    breaks = [0, *(bisect_left(later, end) for end in sorted(ends))]

    def kept_at(place: int) -> frozenset[int]:
        kept = kept_by_rules(table, now=later[place], older_than=None).snapshots
        return kept & frozenset(snapshots)

    for start, end in pairwise((*breaks, len(later))):
        if start < end and not kept_at(end - 1):
            places = range(start, end)
            place = bisect_left(places, True, key=lambda each: not kept_at(each))
            return Ending(later[places[place]])
    return Ending(None, kept_at(len(later) - 1))


def _passed(at: datetime, age: timedelta, now: datetime) -> Iterator[datetime]:
    """Yields the first instant at which something of this date is older than an age, if it is later
    than `now` and a date."""
    with suppress(OverflowError):
        end = at + age + ONE_MICROSECOND  # an age equal to the limit is kept
        if end > now and age < _FOREVER:
            yield end


def _is_over(ref: TableRef, table: TableMetadata, now: datetime) -> bool:
    age = ref.max_ref_age or _age(table, _MAX_REF_AGE, FOREVER_MS)
    return ref.name != MAIN and now - table.snapshots[ref.snapshot_id].at > age


def _kept_of(
    ref: TableRef, history: list[int], table: TableMetadata, bound: datetime, now: datetime
) -> Iterator[int]:
    """Yields the snapshots of a branch up to the first that is neither young nor among the newest
    ones."""
    least = ref.min_snapshots or _number(table, _MIN_SNAPSHOTS, 1)
    if ref.max_snapshot_age is not None:
        bound = now - ref.max_snapshot_age
    for count, snapshot_id in enumerate(history):
        # The head stays, whatever the table's rules say.
        if count >= max(least, 1) and table.snapshots[snapshot_id].at < bound:
            return
        yield snapshot_id


def _history(ref: TableRef, table: TableMetadata) -> Iterator[int]:
    """Yields the snapshots that a ref reaches, the newest first."""
    seen = set[int]()
    place: int | None = ref.snapshot_id
    while place is not None and place in table.snapshots and place not in seen:
        seen.add(place)
        yield place
        place = table.snapshots[place].parent_id


def _of_flink(table: TableMetadata) -> set[int]:
    """Returns the newest snapshot of each job of Flink: a job that is restored looks for the last
    checkpoint that it committed."""
    newest: dict[str, tuple[datetime, int]] = {}
    for each in table.snapshots.values():
        job = each.summary.get(_FLINK_JOB)
        if job is not None and _FLINK_CHECKPOINT in each.summary:
            found = (each.at, each.snapshot_id)
            newest[str(job)] = max(newest.get(str(job), found), found)
    return {snapshot_id for _, snapshot_id in newest.values()}


def _age(table: TableMetadata, name: str, default: int) -> timedelta:
    return age_of(_number(table, name, default))


def _number(table: TableMetadata, name: str, default: int) -> int:
    try:
        return int(table.properties.get(name, default))
    except (TypeError, ValueError, OverflowError) as error:
        raise DamagedMetadataError(
            f"{name} is no number: {table.properties[name]!r:.80}"
        ) from error
