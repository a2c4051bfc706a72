"""Starts the runs of schedules when they are due, and records how the runs end.

Any number of servers of a store can do this at the same time: `Schedules.claim` gives each due time
to one of them. A run is a job of the server (`jobs`), so that the lease of the repository excludes
other runs, and its end is told as that of any run. Not for: setting schedules (`api.schedules`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Final, Protocol

from ebbtide.api.collected import Collected
from ebbtide.errors import EbbtideError, Refused, UnknownRepository
from ebbtide.notify import RunStart, tell
from ebbtide.run_request import request_of
from ebbtide.server.job_files import Job
from ebbtide.server.jobs import Action, Jobs, Order
from ebbtide.server.serving import open_served
from ebbtide.store.embedded import Store
from ebbtide.store.schedules import (
    INTERRUPTED,
    RUNNING,
    Claim,
    Schedule,
    ScheduledRun,
    Schedules,
)
from ebbtide.text import count_text

WAIT_SECONDS_MAX: Final = 30.0
"""How often the thread looks for schedules that another process has set or changed."""

_log = logging.getLogger(__name__)

Ended = Callable[[str, Mapping[str, str] | None], None]
"""Is called with the outcome of a run, and its error if it has one."""


class Starter(Protocol):
    """The way in which a schedule's runs are started."""

    def running_id(self, schedule: Schedule) -> str | None:
        """Returns the id of the run that holds the repository now, in any process; or None."""

    def start(self, schedule: Schedule) -> str:
        """Starts a run, and returns its id when it has the repository. Raises Refused
        `run_in_progress` if another run has it, and any error that kept the run from starting."""

    def follow(self, schedule: Schedule, run_id: str, ended: Ended) -> None:
        """Calls `ended` once the run has ended; at once, if it has."""


class JobStarter:
    """Starts runs as jobs of this server."""

    def __init__(self, store: Store, jobs: Jobs) -> None:
        self._store = store
        self._jobs = jobs

    def running_id(self, schedule: Schedule) -> str | None:
        """Returns the id of the run that holds the repository now. Raises NotFound
        `repository_not_found`, and as the repository's format does."""
        return open_served(self._store, schedule.repository).running_id()

    def start(self, schedule: Schedule) -> str:
        """Starts a run. Other programs are told of a run that cannot start. Raises as `Jobs.start`,
        NotFound `repository_not_found` and Refused `run_in_progress`."""
        start = RunStart(schedule.repository, _action(schedule))
        try:
            found = self._open(schedule)
        except EbbtideError as error:
            if error.kind != "run_in_progress":
                for warning in tell(start.raised(error), self._store.settings):
                    _log.warning("%s: %s", schedule.repository, warning)
            raise
        order = Order(
            directory=self._store.directory,
            settings=self._store.settings,
            repository=found.name,
            repository_id=found.key,
            action=_action(schedule),
            is_scheduled=True,
            options=request_of(schedule.options),
        )
        job = self._jobs.start(order)
        assert job.run_id is not None  # `start` waits for the id
        return job.run_id

    def _open(self, schedule: Schedule) -> Collected:
        """Returns the repository of a schedule, if no run has it. Raises as `start`."""
        found = open_served(self._store, schedule.repository)
        if found.key != schedule.key:
            raise UnknownRepository(
                "repository_not_found",
                f"repository {schedule.repository} was deleted and made anew since its schedule "
                "was set: set a schedule for the new one",
            )
        running = found.running_id()
        if running is not None:
            raise Refused("run_in_progress", f"run {running} is still going on")
        return found

    def follow(self, schedule: Schedule, run_id: str, ended: Ended) -> None:
        """Calls `ended` once the run has ended. It is not called if this server ends first."""
        job = self._jobs.find(schedule.key, run_id)
        assert job is not None  # this server has just started it
        self._jobs.when_ended(job, lambda job: ended(*_end_of(job)))


def _action(schedule: Schedule) -> Action:
    return "plan" if schedule.options["dry_run"] else "run"


def _end_of(job: Job) -> tuple[str, Mapping[str, str] | None]:
    """Returns the state of a run, and its error, or the first of its last steps that failed."""
    if job.report is not None:
        unfinished = next(iter(job.report["unfinished"]), None)
        return str(job.report["state"]), job.report["error"] or unfinished
    return "failed", job.error


class Scheduler:
    """Starts what is due. For use by one thread."""

    def __init__(self, schedules: Schedules, starter: Starter, *, late_max: timedelta) -> None:
        self._schedules = schedules
        self._starter = starter
        self._late_max = late_max
        self._followed: set[str] = set()

    def once(self, stopping: Event | None = None) -> float:
        """Handles all due times that have come. Returns how many seconds later the next start is,
        at most WAIT_SECONDS_MAX. `stopping` ends the work after a start. Raises Failed
        `database_error`."""
        found, now = self._schedules.all()
        for each in found:
            if stopping is not None and stopping.is_set():
                return 0.0
            corrected = self._schedules.correct(each, now)
            if corrected is not None:
                _tell_corrected(each, corrected)
            elif each.next_start_at is not None and each.next_start_at <= now:
                self._handle(each, now)
        found, now = self._schedules.all()
        starts = [each.next_start_at for each in found if each.next_start_at is not None]
        seconds = [(start - now).total_seconds() for start in starts]
        return max(0.0, min([WAIT_SECONDS_MAX, *seconds]))

    def settle(self) -> None:
        """Records runs whose server died as interrupted. Called when a server starts."""
        found, _ = self._schedules.all()
        for each in found:
            self._settle(each)

    def _handle(self, schedule: Schedule, now: datetime) -> None:
        self._settle(schedule)
        claim = self._schedules.claim(schedule, now, late_max=self._late_max)
        if claim is None:
            return
        _tell_missed(claim)
        if claim.end == "skipped":
            _tell_skipped(claim, "the run before it is still being started")
        if claim.end == "run":
            self._start(claim)

    def _start(self, claim: Claim) -> None:
        schedule = claim.schedule
        try:
            run_id = self._starter.start(schedule)
        except EbbtideError as error:
            if error.kind == "run_in_progress":
                self._schedules.note_skipped(claim)
                _tell_skipped(claim, error.message)
                return
            self._schedules.note_failed(claim, error)
            _log.warning(
                "%s: the run of %s did not start: %s: %s",
                schedule.repository,
                _shown(claim.due_at),
                error.kind,
                error.message,
            )
            return
        _log.info(
            "%s: run %s was started for %s", schedule.repository, run_id, _shown(claim.due_at)
        )
        self._schedules.note_started(claim, run_id)
        self._followed.add(run_id)

        def ended(outcome: str, error: Mapping[str, str] | None) -> None:
            self._note_ended(schedule, run_id, outcome, error)

        self._starter.follow(schedule, run_id, ended)

    def _note_ended(
        self, schedule: Schedule, run_id: str, outcome: str, error: Mapping[str, str] | None
    ) -> None:
        """Records the end of a run, in the thread that saw it."""
        try:
            self._schedules.note_ended(schedule.key, run_id, outcome=outcome, error=error)
        except EbbtideError as problem:
            _log.warning(
                "%s: the end of run %s is not in its schedule: %s",
                schedule.repository,
                run_id,
                problem.message,
            )
        self._followed.discard(run_id)

    def _settle(self, schedule: Schedule) -> None:
        """Records the last run as interrupted if no process has it any more."""
        last: ScheduledRun | None = schedule.last_run
        if last is None or last.outcome != RUNNING or last.run_id is None:
            return
        if last.run_id in self._followed:
            return
        try:
            running = self._starter.running_id(schedule)
        except EbbtideError as error:
            _log.warning("%s: its last run is not known: %s", schedule.repository, error.message)
            return
        if running != last.run_id:
            self._schedules.note_ended(schedule.key, last.run_id, outcome=INTERRUPTED)


def _tell_corrected(before: Schedule, corrected: Schedule) -> None:
    assert before.next_due_at is not None and corrected.next_due_at is not None
    _log.warning(
        "%s: its next due time was %s, because a clock was ahead: it is %s now",
        before.repository,
        _shown(before.next_due_at),
        _shown(corrected.next_due_at),
    )


def _tell_missed(claim: Claim) -> None:
    if not claim.missed:
        return
    first, last = claim.missed[0], claim.missed[-1]
    _log.warning(
        "%s: %s had no run, because no server started one in time: %s",
        claim.schedule.repository,
        count_text(len(claim.missed), "due time"),
        _shown(first) if first == last else f"{_shown(first)} to {_shown(last)}",
    )


def _tell_skipped(claim: Claim, why: str) -> None:
    _log.warning(
        "%s: the run of %s was skipped: %s", claim.schedule.repository, _shown(claim.due_at), why
    )


def _shown(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M} UTC"


class ScheduleThread:
    """Starts what is due in the background, until stopped."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="schedules", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Lets the thread end after the start that is under way. Does not wait for it."""
        self._stopping.set()

    def join(self) -> None:
        """Waits until the thread has ended. The jobs are closed before, so that no start takes
        long."""
        self._thread.join()

    def _run(self) -> None:
        seconds, is_settled = 0.0, False
        while not self._stopping.wait(seconds):
            seconds = WAIT_SECONDS_MAX
            try:
                if not is_settled:
                    self._scheduler.settle()
                    is_settled = True
                seconds = self._scheduler.once(self._stopping)
            except EbbtideError as error:
                # The database may not answer for a while. The next pass finds everything unchanged.
                _log.warning("schedules are not read for now: %s", error.message)
            except Exception:  # noqa: BLE001 - logged, and tried again
                # A defect must not end all schedules for as long as the server runs.
                _log.exception("schedules are not read for now")
