"""The schedules of a store's repositories.

A due time has one of three ends: a server starts a run for it, it is missed, or it is skipped. The
counts of a schedule say how many had which end. A server *claims* the due times that have come, in
one conditional update, so that of several servers exactly one has them. Not for: the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import sqlalchemy as sa

from ebbtide.documents import HIDDEN, documented, in_document, named
from ebbtide.errors import EbbtideError, NotFound
from ebbtide.run_request import ScheduledOptions, completed
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import repositories, schedules
from ebbtide.store.repositories.repository_rows import lock_all_repositories
from ebbtide.text import shown
from ebbtide.timetable import Timetable

CLAIM_LASTS: Final = timedelta(minutes=10)
"""How long a server may take from its claim to the run's id. If it takes longer, it has died, and
the due time counts as missed."""

RUNNING: Final = "running"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"
"""The outcome of a run whose server died before the run ended."""

End = Literal["run", "skipped", "missed"]


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """The last run that a schedule started, for the due time `due_at`. `run_id` is None if it
    failed before it had the repository. `outcome` is the state of its report, or `running`,
    `failed` or `interrupted`. `error` has a `kind` and a `message`."""

    due_at: datetime
    started_at: datetime
    outcome: str
    run_id: str | None = None
    error: Mapping[str, str] | None = None
    ended_at: datetime | None = None


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of one repository, as it is stored.

    `repository_key` is the repository's id, or its name if it is elsewhere; `repository` is its
    present name. `next_due_at`, and `next_start_at` with the delay, are None while the schedule is
    disabled. The counts are of due times since `set_at`.
    """

    repository_key: str = field(metadata=HIDDEN)
    repository: str
    cron: str
    timezone: str
    jitter_seconds: int
    options: ScheduledOptions = field(metadata=named("run"))
    set_by: str
    set_at: datetime
    next_due_at: datetime | None
    started_count: int = 0
    missed_count: int = 0
    skipped_count: int = 0
    starting_due_at: datetime | None = field(default=None, metadata=HIDDEN)
    starting_since: datetime | None = field(default=None, metadata=HIDDEN)
    last_due_at: datetime | None = field(default=None, metadata=HIDDEN)
    last_started_at: datetime | None = field(default=None, metadata=HIDDEN)
    last_run_id: str | None = field(default=None, metadata=HIDDEN)
    last_outcome: str | None = field(default=None, metadata=HIDDEN)
    last_error: Mapping[str, str] | None = field(default=None, metadata=HIDDEN)
    last_ended_at: datetime | None = field(default=None, metadata=HIDDEN)

    def __post_init__(self) -> None:
        # An older version may have stored fewer options.
        object.__setattr__(self, "options", completed(self.options))

    @property
    def key(self) -> str:
        """The repository's key."""
        return self.repository_key

    @property
    def timetable(self) -> Timetable:
        """The due times."""
        return Timetable(self.cron, self.timezone, timedelta(seconds=self.jitter_seconds))

    @property
    @in_document
    def enabled(self) -> bool:
        """Whether the schedule has a next due time."""
        return self.next_due_at is not None

    @property
    @in_document
    def next_start_at(self) -> datetime | None:
        """The next due time with its delay."""
        due = self.next_due_at
        return None if due is None else self.timetable.start_of(due, self.key)

    @property
    @in_document
    def last_run(self) -> ScheduledRun | None:
        """The last run that the schedule started."""
        if self.last_due_at is None or self.last_started_at is None:
            return None
        return ScheduledRun(
            due_at=self.last_due_at,
            started_at=self.last_started_at,
            outcome=self.last_outcome or RUNNING,
            run_id=self.last_run_id,
            error=self.last_error,
            ended_at=self.last_ended_at,
        )


SCHEDULES: Final = Rows(schedules, Schedule, schedules.c.repository_key)
_NAME = sa.func.coalesce(repositories.c.name, schedules.c.repository).label("repository")
_COLUMNS = [_NAME if each.name == "repository" else each for each in schedules.c]
"""A repository of the store can get another name when it is restored."""


def list_schedules(tx: Transaction) -> list[Schedule]:
    """Returns all schedules, by the names of their repositories."""
    return SCHEDULES.all(tx, _select().order_by(_NAME))


def find_schedule(tx: Transaction, repository_key: str, *, locks: bool = False) -> Schedule | None:
    """Returns the schedule of a repository, or None. With `locks`, its row stays locked until the
    end of the transaction."""
    query = _select().where(schedules.c.repository_key == repository_key)
    return SCHEDULES.one(tx, query.with_for_update(of=schedules) if locks else query)


def _select() -> sa.Select[Any]:
    joined = schedules.outerjoin(
        repositories, repositories.c.repository_id == schedules.c.repository_key
    )
    return sa.select(*_COLUMNS).select_from(joined)


def claim_schedule(tx: Transaction, seen: Schedule, values: Mapping[str, Any]) -> bool:
    """Sets columns of a schedule, if nobody has claimed its due time or set it since it was
    `seen`. Returns whether it did."""
    same = [
        schedules.c[name].is_not_distinct_from(getattr(seen, name))
        for name in ("repository_key", "set_at", "next_due_at", "starting_due_at")
    ]
    return tx.execute(sa.update(schedules).where(*same).values(**values)).rowcount == 1


def delete_schedule(tx: Transaction, repository_key: str) -> bool:
    """Deletes a schedule. Returns whether there was one."""
    done = tx.execute(sa.delete(schedules).where(schedules.c.repository_key == repository_key))
    return done.rowcount == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The due times that one server claimed together. `due_at` is the latest, which has the end
    `end`. `missed` are all that no run is started for, the oldest first."""

    schedule: Schedule
    due_at: datetime
    end: End
    missed: tuple[datetime, ...]


class Schedules:
    """The schedules of one store. Thread-safe."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def put(
        self,
        key: str,
        name: str,
        timetable: Timetable,
        options: ScheduledOptions,
        *,
        by: str,
        enabled: bool = True,
    ) -> Schedule:
        """Sets the schedule of a repository, in place of an earlier one. The last run stays, and
        the counts begin again. The first due time is after now."""
        with self._metadata.transaction() as tx:
            now = tx.now()
            values = {
                "repository": name,
                "cron": timetable.cron,
                "timezone": timetable.timezone,
                "jitter_seconds": timetable.jitter // timedelta(seconds=1),
                "options": completed(options),
                "set_by": by,
                "set_at": now,
                "next_due_at": timetable.due_after(now) if enabled else None,
                "started_count": 0,
                "missed_count": 0,
                "skipped_count": 0,
                "starting_due_at": None,
                "starting_since": None,
            }
            lock_all_repositories(tx)  # of two first schedules, one is inserted after the other
            if find_schedule(tx, key, locks=True) is None:
                tx.execute(sa.insert(schedules).values(repository_key=key, **values))
            else:
                SCHEDULES.update(tx, key, **values)
            return self._read(tx, key, name)

    def get(self, key: str, name: str) -> Schedule:
        """Returns the schedule of a repository. Raises NotFound `schedule_not_found`."""
        with self._metadata.snapshot() as tx:
            return self._read(tx, key, name)

    def find(self, key: str) -> Schedule | None:
        """Returns the schedule of a repository, or None."""
        with self._metadata.snapshot() as tx:
            return find_schedule(tx, key)

    def all(self) -> tuple[list[Schedule], datetime]:
        """Returns all schedules, by the names of their repositories, and the database's time."""
        with self._metadata.snapshot() as tx:
            return list_schedules(tx), tx.now()

    def remove(self, key: str, name: str) -> None:
        """Deletes the schedule of a repository. Raises NotFound `schedule_not_found`."""
        with self._metadata.transaction() as tx:
            if not delete_schedule(tx, key):
                raise _no_schedule(name)

    def enable(self, key: str, name: str, *, enabled: bool) -> Schedule:
        """Enables or disables a schedule. Due times while it is disabled are not missed. Does
        nothing if it is so already. Raises NotFound `schedule_not_found`."""
        with self._metadata.transaction() as tx:
            row = find_schedule(tx, key, locks=True)
            if row is not None and (row.next_due_at is not None) != enabled:
                due = row.timetable.due_after(tx.now()) if enabled else None
                SCHEDULES.update(tx, key, next_due_at=due)
            return self._read(tx, key, name)

    def correct(self, schedule: Schedule, now: datetime) -> Schedule | None:
        """Corrects a schedule whose next due time is later than the first one after `now`: a clock
        was ahead when it was claimed. Returns the schedule as it is then.

        Returns None if nothing is wrong, or if the schedule was claimed or changed since.
        """
        due = schedule.next_due_at
        first = schedule.timetable.due_after(now)
        if due is None or due <= first:
            return None
        with self._metadata.transaction() as tx:
            if not claim_schedule(tx, schedule, {"next_due_at": first}):
                return None
            return self._read(tx, schedule.key, schedule.repository)

    def claim(self, schedule: Schedule, now: datetime, *, late_max: timedelta) -> Claim | None:
        """Claims the due times of a schedule whose starts have come by `now`.

        The latest of them gets a run, unless its start is more than `late_max` ago, or the start of
        the previous run is under way. All earlier ones are missed. Returns None if no start has
        come, or if the schedule was claimed or changed since it was read.
        """
        due, following = _come(schedule, now)
        if not due:
            return None
        latest = due[-1]
        end: End = "run"
        missed = due[:-1]
        if schedule.starting_due_at is not None and schedule.starting_since is not None:
            # A claim that is dated in the future was made while a clock was ahead.
            if abs(now - schedule.starting_since) < CLAIM_LASTS:
                end = "skipped"
            else:
                missed = [schedule.starting_due_at, *missed]
        if end == "run" and now - schedule.timetable.start_of(latest, schedule.key) > late_max:
            end = "missed"
            missed = [*missed, latest]
        values: dict[str, Any] = {  # columns of the schedule
            "next_due_at": following,
            "missed_count": schedule.missed_count + len(missed),
        }
        if end == "skipped":
            values["skipped_count"] = schedule.skipped_count + 1
        else:
            is_run = end == "run"
            values["starting_due_at"] = latest if is_run else None
            values["starting_since"] = now if is_run else None
        with self._metadata.transaction() as tx:
            if not claim_schedule(tx, schedule, values):
                return None
        return Claim(schedule=schedule, due_at=latest, end=end, missed=tuple(missed))

    def note_started(self, claim: Claim, run_id: str) -> None:
        """Records that the run of a claim has the repository."""
        self._note(
            claim,
            lambda row, now: {
                "started_count": row.started_count + 1,
                **_last(claim, now, outcome=RUNNING, run_id=run_id),
            },
        )

    def note_failed(self, claim: Claim, error: EbbtideError) -> None:
        """Records that the run of a claim failed before it had the repository."""
        self._note(
            claim,
            lambda row, now: {
                "started_count": row.started_count + 1,
                **_last(claim, now, outcome=FAILED, error=_document(error), ended_at=now),
            },
        )

    def note_skipped(self, claim: Claim) -> None:
        """Records that the due time of a claim got no run, because another run was going on."""
        self._note(claim, lambda row, _now: {"skipped_count": row.skipped_count + 1})

    def _note(self, claim: Claim, change: Callable[[Schedule, datetime], dict[str, Any]]) -> None:
        """Records the end of a claimed due time, unless the schedule was set or deleted since."""
        key = claim.schedule.key
        with self._metadata.transaction() as tx:
            row = find_schedule(tx, key, locks=True)
            if row is None or row.starting_due_at != claim.due_at:
                return
            values = {"starting_due_at": None, "starting_since": None, **change(row, tx.now())}
            SCHEDULES.update(tx, key, **values)

    def note_ended(
        self, key: str, run_id: str, *, outcome: str, error: Mapping[str, str] | None = None
    ) -> None:
        """Records the end of a run, if it is still the last run of the schedule."""
        with self._metadata.transaction() as tx:
            row = find_schedule(tx, key, locks=True)
            if row is None or row.last_run_id != run_id:
                return
            SCHEDULES.update(
                tx,
                key,
                last_outcome=outcome,
                last_error=None if error is None else dict(error),
                last_ended_at=tx.now(),
            )

    def _read(self, tx: Transaction, key: str, name: str) -> Schedule:
        row = find_schedule(tx, key)
        if row is None:
            raise _no_schedule(name)
        return row


def _come(schedule: Schedule, now: datetime) -> tuple[list[datetime], datetime | None]:
    """Returns the due times whose starts have come, the oldest first, and the one after them."""
    found: list[datetime] = []
    due, timetable = schedule.next_due_at, schedule.timetable
    while due is not None and timetable.start_of(due, schedule.key) <= now:
        found.append(due)
        due = timetable.due_after(due)
    return found, due


def _last(claim: Claim, now: datetime, **values: Any) -> dict[str, Any]:  # columns
    """Returns the columns that describe the last run."""
    return {
        "last_due_at": claim.due_at,
        "last_started_at": now,
        "last_outcome": values["outcome"],
        "last_run_id": values.get("run_id"),
        "last_error": values.get("error"),
        "last_ended_at": values.get("ended_at"),
    }


def _document(error: EbbtideError) -> dict[str, str]:
    return {"kind": error.kind, "message": error.message}


def _no_schedule(name: str) -> NotFound:
    return NotFound(
        "schedule_not_found",
        f"{shown(name)} has no schedule: set one with 'ebbtide schedule set'",
    )
