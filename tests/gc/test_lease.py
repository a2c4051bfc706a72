"""The hold on a repository without a database: takers, heartbeats, clocks, a storage that fails."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.errors import Conflict, EbbtideError, Failed, Refused
from ebbtide.formats.base import RunHold
from ebbtide.gc.hold import LEASE_ADDRESS, StorageHold, hold_storage, holder_of
from ebbtide.ids import new_id
from ebbtide.processes import this_process
from ebbtide.storage import Storage, open_storage
from tests.support.clock import ManualClock
from tests.support.commands import captured
from tests.support.errors import raises
from tests.support.faulty import FaultyStorage, Hook

NEVER = timedelta(hours=1)
QUICK = timedelta(milliseconds=5)
TTL = timedelta(seconds=30)
SKEW_MAX = timedelta(minutes=5)
ELSEWHERE = "another-machine pid:[1] 17 4711"
TICK = timedelta(microseconds=1)


def no_wait(seconds: float) -> None:
    raise AssertionError(f"waited {seconds} s")


class Place:
    def __init__(self) -> None:
        self.storage = open_storage(f"memory:{new_id()}")
        self.clock = ManualClock(datetime(2024, 5, 1, 12, tzinfo=UTC))

    def hold(
        self, run_id: str, at: Storage | None = None, **options: Any
    ) -> AbstractContextManager[StorageHold]:
        """`hold_storage`; without heartbeats unless the options ask for them."""
        usual = {"heartbeat": NEVER, "lease_ttl": TTL, "skew_max": SKEW_MAX, "wait": no_wait}
        chosen: dict[str, Any] = usual | {"clock": self.clock.host_now} | options
        return hold_storage(at or self.storage, run_id=run_id, **chosen)

    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.storage.get(LEASE_ADDRESS))
        return found

    def leave_behind(
        self, silence: timedelta, *, holder: str | None = ELSEWHERE, run_id: str = "old"
    ) -> None:
        """The file of a run that did not let go, at epoch 7."""
        beat_at = (self.clock.now - silence).isoformat()
        fields = {"run_id": run_id, "run_epoch": 7, "holder": holder, "beat_at": beat_at}
        self.storage.put(LEASE_ADDRESS, json.dumps(fields).encode())

    def is_free(self) -> bool:
        return self.content()["run_id"] is None


@pytest.fixture
def place() -> Place:
    return Place()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the heartbeat's thread does within milliseconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def heartbeats() -> int:
    return sum(each.name == "heartbeat" for each in threading.enumerate())


def lost(by: str) -> pytest.RaisesExc[EbbtideError]:
    return raises("lease_lost", by, "deletes nothing more", of=Refused)


@contextlib.contextmanager
def in_progress(run_id: str, *mentions: str) -> Iterator[None]:
    with raises("run_in_progress", run_id, "wait for it to end", *mentions, of=Refused) as refused:
        yield
    assert refused.value.details == {"run_id": run_id}


def failing(
    *methods: str, error: EbbtideError | None = None, skips: int = 0, times: int = 10**9
) -> Hook:
    calls = itertools.count(-skips)

    def hook(method: str, address: str) -> None:
        if method in methods and address == LEASE_ADDRESS and 0 <= next(calls) < times:
            raise error or Failed("storage_error", f"{method} was made to fail")

    return hook


def test_a_hold_is_taken_told_and_let_go(place: Place) -> None:
    """Another run does not disturb it meanwhile."""
    with place.hold("one") as hold:
        held: RunHold = hold
        found = place.content()
        assert datetime.fromisoformat(found.pop("beat_at")) == place.clock.now
        assert found.pop("nonce")
        assert found == {"run_id": "one", "run_epoch": 1, "holder": this_process()}
        place.clock.advance(timedelta(seconds=12))
        before = place.storage.get(LEASE_ADDRESS)
        with in_progress("one", "last heard of 12 s ago", "30 s after it died"), place.hold("two"):
            pass
        assert place.storage.get(LEASE_ADDRESS) == before
        held.check()
        assert held.run_epoch == 1
    assert (place.is_free(), place.content()["run_epoch"]) == (True, 1)
    with place.hold("two") as second:
        assert second.run_epoch == 2
    assert heartbeats() == 0


def test_who_holds_it(place: Place) -> None:
    """Whoever wants to show it asks so; nothing is written."""

    def holder() -> str | None:
        return holder_of(place.storage, lease_ttl=TTL, now=place.clock.now)

    assert holder() is None
    with place.hold("one"):
        before = place.storage.get(LEASE_ADDRESS)
        assert holder() == "one"
        place.clock.now += TTL
        assert holder() is None, "it was silent for too long"
        place.clock.now -= 2 * TTL
        assert holder() is None, "its heartbeat is of the future: a clock was ahead"
        assert place.storage.get(LEASE_ADDRESS) == before
    assert holder() is None
    place.storage.put(LEASE_ADDRESS, b"{")
    with raises("run_in_progress", "is damaged", of=Refused):
        holder()


def test_a_run_that_died_on_this_machine_is_replaced_at_once(place: Place) -> None:
    program = "from ebbtide.processes import this_process; print(this_process())"
    dead = captured([sys.executable, "-c", program]).stdout.strip()
    for holder in (this_process(), ELSEWHERE, None, "nonsense"):
        place.leave_behind(timedelta(0), holder=holder)
        with in_progress("old"), place.hold("new"):
            pass
    place.leave_behind(timedelta(0), holder=dead)
    with place.hold("new") as hold:
        assert hold.run_epoch == 8
        hold.check()


def test_a_run_that_fell_silent(place: Place) -> None:
    """Watching lasts no shorter than the lease."""
    for silence, expected in (
        (TTL - TICK, "refused"),
        (TTL, "watched"),
        (TTL + SKEW_MAX, "watched"),
        (TTL + SKEW_MAX + TICK, "taken"),
        (-TTL + TICK, "refused"),
        (-TTL, "watched"),
        (-timedelta(days=9), "watched"),
    ):
        place.leave_behind(silence)
        waits: list[float] = []
        taking = place.hold("new", wait=waits.append, heartbeat=timedelta(seconds=7))
        if expected == "refused":
            with in_progress("old"), taking:
                pass
        else:
            with taking as hold:
                assert hold.run_epoch == 8
        assert waits == ([7.0] * 5 if expected == "watched" else []), silence


def dead_here() -> str:
    """This process as it would be named had it started at another time."""
    return f"{(this_process() or '').rpartition(' ')[0]} 0"


MEANWHILE: dict[str, tuple[Callable[[Place], object], str | int]] = {
    "heartbeat": (lambda place: place.leave_behind(TTL - timedelta(seconds=5)), "old"),
    "another": (lambda place: place.leave_behind(timedelta(0), run_id="another"), "another"),
    "release": (
        lambda place: place.storage.put(
            LEASE_ADDRESS, json.dumps(place.content() | {"run_id": None}).encode()
        ),
        8,
    ),
    "death": (lambda place: place.leave_behind(TTL, holder=dead_here()), 8),
    "deletion": (lambda place: place.storage.delete([LEASE_ADDRESS]), 1),
}
"""What happens to a file that is watched, and the run that holds it then, or the new epoch."""


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_what_happens_to_a_file_that_is_watched(place: Place, meanwhile: str) -> None:
    happen, expected = MEANWHILE[meanwhile]
    place.leave_behind(TTL)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            happen(place)

    taking = place.hold("new", wait=wait, heartbeat=timedelta(seconds=5))
    if isinstance(expected, str):
        with in_progress(expected, "just now"), taking:
            pass
    else:
        with taking as hold:
            assert hold.run_epoch == expected
    assert len(waits) == 3


@pytest.mark.parametrize("before", ["nothing", "released", "silent"])
@pytest.mark.parametrize("runs", [("one", "two"), ("same", "same")])
def test_of_two_takers_at_once_one_wins(place: Place, before: str, runs: tuple[str, str]) -> None:
    if before == "released":
        with place.hold("former"):
            pass
    elif before == "silent":
        place.leave_behind(timedelta(days=1))
    both_have_read, both_are_through = threading.Barrier(2), threading.Barrier(2)
    winners: list[str] = []
    refusals: list[str] = []

    def meet(method: str, _: str) -> None:
        if method in ("put", "replace") and not both_have_read.broken:
            with contextlib.suppress(threading.BrokenBarrierError):
                both_have_read.wait(20)
            both_have_read.abort()

    def take(run_id: str) -> None:
        try:
            with place.hold(run_id, FaultyStorage(place.storage, before=meet)) as hold:
                both_are_through.wait(20)
                hold.check()
                winners.append(run_id)
        except Refused as error:
            refusals.append(error.kind)
            both_are_through.wait(20)

    takers = [threading.Thread(target=take, args=(run_id,)) for run_id in runs]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert (len(winners), refusals) == (1, ["run_in_progress"])


def test_a_damaged_file_is_left_to_people(place: Place) -> None:
    sound = b'{"run_id": "x", "run_epoch": 1, "holder": null, "beat_at": "2024-05-01T12:00:00Z"}'
    address = f"{place.storage.url}/{LEASE_ADDRESS}"
    for data in (
        b"", b"[]", b"\xff\xfe", sound.replace(b', "beat_at": "2024-05-01T12:00:00Z"', b""),
        sound.replace(b'": 1', b'": "1"'), sound.replace(b"Z", b""), sound.replace(b'"x"', b"1"),
    ):  # fmt: skip
        place.storage.put(LEASE_ADDRESS, data)
        told = (f"{address} is damaged", "then delete the file")
        with raises("run_in_progress", *told, of=Refused), place.hold("new"):
            pass
        assert place.storage.get(LEASE_ADDRESS) == data


def test_heartbeats_keep_a_hold(place: Place) -> None:
    with place.hold("one", heartbeat=QUICK) as hold:
        for _ in range(3):
            place.clock.advance(TTL - timedelta(seconds=1))
            until(lambda: datetime.fromisoformat(place.content()["beat_at"]) == place.clock.now)
            hold.check()
            with in_progress("one", "last heard of 0 s ago"), place.hold("two"):
                pass


@pytest.mark.parametrize("how", ["taken", "damaged", "deleted"])
@pytest.mark.parametrize("finder", ["check", "heartbeat"])
def test_a_hold_that_is_lost(place: Place, how: str, finder: str) -> None:
    """The file stays as it was found. A loss that the heartbeat found needs no other read."""
    storage = place.storage
    reads: list[str] = []
    watched = FaultyStorage(storage, after=lambda method, _: reads.append(method))
    with place.hold("one", watched, heartbeat=QUICK if finder == "heartbeat" else NEVER) as hold:
        if how == "taken":
            place.leave_behind(timedelta(0), run_id="another")
        elif how == "damaged":
            storage.put(LEASE_ADDRESS, b"{}")
        else:
            storage.delete([LEASE_ADDRESS])
        after = None if how == "deleted" else storage.get(LEASE_ADDRESS)
        if finder == "heartbeat":
            until(lambda: heartbeats() == 0)
            reads.clear()
        for _ in range(2):
            with lost("another" if how == "taken" else "none"):
                hold.check()
        assert finder == "check" or reads == []
    assert (storage.get(LEASE_ADDRESS) if storage.head(LEASE_ADDRESS) else None) == after


def test_a_hold_of_the_same_run_is_another_hold(place: Place) -> None:
    with place.hold("one") as first:
        place.clock.advance(TTL + SKEW_MAX + TICK)
        with place.hold("one") as second:
            assert (first.run_epoch, second.run_epoch) == (1, 2)
            place.clock.advance(-TTL - SKEW_MAX)
            second.check()
            with lost("one"):
                first.check()
        assert place.is_free()


@pytest.mark.parametrize("failing_methods", [("replace",), ("replace", "get_versioned")])
def test_a_storage_that_fails_for_a_while_is_no_loss_yet(
    place: Place, failing_methods: tuple[str, ...]
) -> None:
    attempts: list[str] = []
    broken = threading.Event()

    def fail(method: str, _: str) -> None:
        if broken.is_set() and method in failing_methods:
            attempts.append(method)
            raise Failed("storage_error", "the network is down")

    def sound() -> bool:
        with contextlib.suppress(Refused):
            hold.check()
            return True
        return False

    with place.hold("one", FaultyStorage(place.storage, before=fail), heartbeat=QUICK) as hold:
        broken.set()
        place.clock.advance(TTL - TICK)
        until(lambda: attempts.count("replace") >= 3)
        if "get_versioned" in failing_methods:
            with pytest.raises(Failed):
                hold.check()
        else:
            hold.check()
        place.clock.advance(TICK)
        with lost("no heartbeat of run one reached the storage for 30 s"):
            hold.check()
        broken.clear()
        until(sound)
        assert datetime.fromisoformat(place.content()["beat_at"]) == place.clock.now
    assert place.is_free()


def test_a_check_that_cannot_read_says_so(place: Place) -> None:
    """The third reading of the file is the first after it was created and read back."""
    faulty = FaultyStorage(place.storage, before=failing("get_versioned", times=2))
    with pytest.raises(Failed), place.hold("one", faulty):
        pass
    faulty = FaultyStorage(place.storage, before=failing("get_versioned", skips=2, times=1))
    with place.hold("one", faulty) as hold:
        with pytest.raises(Failed):
            hold.check()
        hold.check()


@pytest.mark.parametrize("answer", [Failed("storage_error", "?"), Conflict("object_changed", "?")])
def test_a_heartbeat_whose_answer_was_lost_has_been_sent(
    place: Place, answer: EbbtideError
) -> None:
    """The client gave up on it, or sent it again and met its own first attempt."""
    closed, deaf = threading.Event(), threading.Event()
    turned_away: list[str] = []

    def before(method: str, address: str) -> None:
        if method == "replace" and closed.is_set() and not deaf.is_set():
            turned_away.append(address)
            raise Failed("storage_error", "the network is down")

    def after(method: str, _: str) -> None:
        if method == "replace" and deaf.is_set():
            deaf.clear()
            raise answer

    with place.hold("one", FaultyStorage(place.storage, before, after), heartbeat=QUICK) as hold:
        closed.set()
        place.clock.advance(TTL)
        until(lambda: len(turned_away) >= 2)
        with lost("no heartbeat"):
            hold.check()
        deaf.set()  # One heartbeat gets through, but its answer does not.
        until(lambda: not deaf.is_set())
        turned_away.clear()
        until(lambda: len(turned_away) >= 2)
        hold.check()
        closed.clear()
    assert place.is_free()


def test_letting_go_after_a_heartbeat_of_which_nothing_is_known(place: Place) -> None:
    armed, sent = threading.Event(), threading.Event()

    def after(method: str, _: str) -> None:
        if method == "replace" and armed.is_set() and not sent.is_set():
            sent.set()
            raise Failed("storage_error", "no answer")

    def before(method: str, _: str) -> None:
        if method == "get_versioned" and sent.is_set() and armed.is_set():
            armed.clear()
            raise Failed("storage_error", "no answer")

    faulty = FaultyStorage(place.storage, before, after)
    with place.hold("one", faulty, heartbeat=timedelta(seconds=0.2)):
        armed.set()
        until(lambda: sent.is_set() and not armed.is_set())
    assert place.is_free()


@pytest.mark.parametrize("before", ["nothing", "silent"])
def test_a_taking_that_met_its_own_first_attempt_is_one(place: Place, before: str) -> None:
    if before == "silent":
        place.leave_behind(timedelta(days=1))
    hook = failing("put", "replace", error=Conflict("object_exists", "?"), times=1)
    with place.hold("one", FaultyStorage(place.storage, after=hook)) as hold:
        hold.check()
        assert hold.run_epoch == (8 if before == "silent" else 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_letting_go_is_tried_twice(place: Place, when: str) -> None:
    with place.hold("one", FaultyStorage(place.storage, **{when: failing("replace", times=1)})):
        pass
    assert place.is_free()


def test_a_storage_that_fails_at_the_end_leaves_the_file(place: Place) -> None:
    """The error of the block, if there is one, is the one that is raised."""
    faulty = FaultyStorage(place.storage, before=failing("replace"))
    with pytest.raises(RuntimeError, match="mine"), place.hold("one", faulty):
        raise RuntimeError("mine")
    assert (place.content()["run_id"], heartbeats()) == ("one", 0)
    with in_progress("one"), place.hold("two"):
        pass
    place.clock.advance(TTL + SKEW_MAX + TICK)
    with place.hold("two") as hold:
        assert hold.run_epoch == 2
