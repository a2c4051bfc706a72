"""Schedules in the database: claims that meet, changes in between, and names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest

from ebbtide.errors import Failed, NotFound
from ebbtide.run_request import ScheduledOptions
from ebbtide.store.embedded import Store
from ebbtide.store.repositories.catalog import close_repository
from ebbtide.store.schedules import (
    FAILED,
    INTERRUPTED,
    RUNNING,
    Schedule,
)
from ebbtide.timetable import Timetable
from tests.support.clock import ManualClock

HOURLY = Timetable("0 * * * *")
HOUR = timedelta(hours=1)
LATE_MAX = timedelta(hours=6)
THREADS = 6


def put(store: Store, key: str = "k", name: str = "lake") -> Schedule:
    return store.schedules.put(key, name, HOURLY, ScheduledOptions(), by="me")


@pytest.mark.twins
def test_of_claims_that_meet_one_wins(store: Store, clock: ManualClock) -> None:
    made = put(store)
    clock.advance(HOUR)
    barrier = Barrier(THREADS)

    def claim() -> bool:
        barrier.wait()
        return store.schedules.claim(made, clock.now, late_max=LATE_MAX) is not None

    with ThreadPoolExecutor(THREADS) as pool:
        found = [pool.submit(claim) for _ in range(THREADS)]
    assert sum(each.result() for each in found) == 1


@pytest.mark.twins
def test_first_schedules_that_meet(store: Store) -> None:
    """One replaces the other."""
    barrier = Barrier(THREADS)

    def set_one() -> str:
        barrier.wait()
        return put(store).repository

    with ThreadPoolExecutor(THREADS) as pool:
        found = [pool.submit(set_one) for _ in range(THREADS)]
    assert {each.result() for each in found} == {"lake"}
    assert len(store.schedules.all()[0]) == 1


def test_a_claim_needs_the_schedule_that_was_read(store: Store, clock: ManualClock) -> None:
    """None that was set anew, disabled or deleted since, or is not due yet is claimed."""
    made = put(store)
    assert store.schedules.claim(made, clock.now, late_max=LATE_MAX) is None
    clock.advance(HOUR)
    again = put(store)
    assert store.schedules.claim(made, clock.now, late_max=LATE_MAX) is None
    clock.advance(HOUR)
    store.schedules.enable("k", "lake", enabled=False)
    assert store.schedules.claim(again, clock.now, late_max=LATE_MAX) is None
    store.schedules.remove("k", "lake")
    assert store.schedules.claim(again, clock.now, late_max=LATE_MAX) is None
    with pytest.raises(NotFound, match="has no schedule"):
        store.schedules.enable("k", "lake", enabled=True)


def test_the_last_run(store: Store, clock: ManualClock) -> None:
    """Its id, its end and its error; a later run replaces it, and its end comes too late."""
    found = []
    for _ in range(2):
        schedule = store.schedules.find("k") or put(store)
        clock.advance(HOUR)
        claim = store.schedules.claim(schedule, clock.now, late_max=LATE_MAX)
        assert claim is not None
        found.append(claim)
        store.schedules.note_started(claim, f"run-{len(found)}")
    store.schedules.note_ended("k", "run-1", outcome=INTERRUPTED)
    last = store.schedules.get("k", "lake").last_run
    assert last is not None
    assert (last.due_at, last.run_id, last.outcome) == (found[1].due_at, "run-2", RUNNING)
    error = {"kind": "over_share", "message": "too much"}
    store.schedules.note_ended("k", "run-2", outcome="refused", error=error)
    last = store.schedules.get("k", "lake").last_run
    assert last is not None
    assert (last.outcome, last.error, last.ended_at) == ("refused", error, clock.now)


def test_an_end_after_a_change_counts_for_nothing(store: Store, clock: ManualClock) -> None:
    made = put(store)
    clock.advance(HOUR)
    claim = store.schedules.claim(made, clock.now, late_max=LATE_MAX)
    assert claim is not None
    put(store)
    store.schedules.note_failed(claim, Failed("worker_died", "it died"))
    schedule = store.schedules.get("k", "lake")
    assert (schedule.started_count, schedule.last_run) == (0, None)
    clock.advance(HOUR)
    claim = store.schedules.claim(schedule, clock.now, late_max=LATE_MAX)
    assert claim is not None
    store.schedules.note_failed(claim, Failed("worker_died", "it died"))
    last = store.schedules.get("k", "lake").last_run
    assert last is not None and (last.outcome, last.run_id) == (FAILED, None)


def test_a_repository_of_the_store(store: Store) -> None:
    """The schedule has its present name, and goes when the repository is closed for good."""
    info = store.create_repository("lake").info
    put(store, info.repository_id, "earlier")
    assert store.schedules.get(info.repository_id, "lake").repository == "lake"
    with store.metadata.transaction() as tx:
        close_repository(tx, info.repository_id, run_id="run")
    assert store.schedules.find(info.repository_id) is None
