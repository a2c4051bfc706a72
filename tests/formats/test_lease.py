"""The hold on a repository without a database: takers, heartbeats, clocks, a storage that fails."""

from __future__ import annotations

import contextlib
import json
import subprocess
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
from ebbtide.formats.lease import LEASE_ADDRESS, StorageHold, hold_storage, holder_of
from ebbtide.ids import new_id
from ebbtide.processes import this_process
from ebbtide.storage import Storage, open_storage
from tests.support.clock import ManualClock
from tests.support.faulty import FaultyStorage, Hook

NEVER = timedelta(hours=1)
QUICK = timedelta(milliseconds=5)
TTL = timedelta(seconds=30)
SKEW_MAX = timedelta(minutes=5)
ELSEWHERE = "another-machine pid:[1] 17 4711"


@pytest.fixture
def storage() -> Storage:
    return open_storage(f"memory:{new_id()}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2024, 5, 1, 12, tzinfo=UTC))


def no_wait(seconds: float) -> None:
    raise AssertionError(f"waited {seconds} s")


Holding = Callable[..., AbstractContextManager[StorageHold]]


@pytest.fixture
def holding(storage: Storage, clock: ManualClock) -> Holding:
    """`hold_storage` by the clock of the test; without heartbeats unless it asks for them."""

    usual: dict[str, Any] = {
        "heartbeat": NEVER,
        "lease_ttl": TTL,
        "skew_max": SKEW_MAX,
        "clock": clock.host_now,
        "wait": no_wait,
    }

    def hold(
        run_id: str, at: Storage = storage, **options: Any
    ) -> AbstractContextManager[StorageHold]:
        return hold_storage(at, run_id=run_id, **(usual | options))

    return hold


def content(storage: Storage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(storage.get(LEASE_ADDRESS))
    return found


def leave_behind(
    storage: Storage, beat_at: datetime, *, holder: str | None = ELSEWHERE, run_id: str = "old"
) -> None:
    """The file of a run that did not let go, at epoch 7."""
    fields = {
        "run_id": run_id,
        "run_epoch": 7,
        "holder": holder,
        "beat_at": beat_at.isoformat(),
    }
    storage.put(LEASE_ADDRESS, json.dumps(fields).encode())


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the heartbeat's thread does within milliseconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def heartbeats() -> int:
    """How many threads send heartbeats."""
    return sum(each.name == "heartbeat" for each in threading.enumerate())


@contextlib.contextmanager
def lost(by: str) -> Iterator[None]:
    with pytest.raises(Refused) as refused:
        yield
    assert refused.value.kind == "lease_lost"
    assert by in refused.value.message
    assert "deletes nothing more" in refused.value.message


@contextlib.contextmanager
def in_progress(run_id: str, *mentions: str) -> Iterator[None]:
    with pytest.raises(Refused) as refused:
        yield
    assert refused.value.kind == "run_in_progress"
    assert refused.value.details == {"run_id": run_id}
    for mention in (run_id, "wait for it to end", *mentions):
        assert mention in refused.value.message


def failing(*methods: str, error: EbbtideError | None = None, times: int = 10**9) -> Hook:
    left = [times]

    def hook(method: str, address: str) -> None:
        if method in methods and address == LEASE_ADDRESS and left[0] > 0:
            left[0] -= 1
            raise error or Failed("storage_error", f"{method} was made to fail")

    return hook


def test_a_hold_is_taken_told_and_let_go(
    storage: Storage, holding: Holding, clock: ManualClock
) -> None:
    with holding("one") as hold:
        held: RunHold = hold
        held.check()
        assert held.run_epoch == 1
        found = content(storage)
        assert datetime.fromisoformat(found.pop("beat_at")) == clock.now
        assert found.pop("nonce")
        assert found == {"run_id": "one", "run_epoch": 1, "holder": this_process()}
    assert content(storage)["run_id"] is None
    assert content(storage)["run_epoch"] == 1
    with holding("two") as second:
        assert second.run_epoch == 2
    assert heartbeats() == 0


def test_who_holds_it(storage: Storage, holding: Holding, clock: ManualClock) -> None:
    """Whoever wants to show it asks so; nothing is written."""

    def holder() -> str | None:
        return holder_of(storage, lease_ttl=TTL, now=clock.now)

    assert holder() is None
    with holding("one"):
        before = storage.get(LEASE_ADDRESS)
        assert holder() == "one"
        clock.now += TTL
        assert holder() is None, "it was silent for too long"
        clock.now -= TTL
        assert storage.get(LEASE_ADDRESS) == before
        clock.now -= TTL
        assert holder() is None, "its heartbeat is of the future: a clock was ahead"
        clock.now += TTL
    assert holder() is None
    storage.put(LEASE_ADDRESS, b"{")
    with pytest.raises(Refused, match="is damaged"):
        holder()


def test_a_prefix_is_put_before_the_address(storage: Storage, holding: Holding) -> None:
    with holding("one", prefix="copies/a/"), holding("two", prefix="copies/b/"), holding("three"):
        for place, run_id in (("copies/a/", "one"), ("copies/b/", "two"), ("", "three")):
            assert json.loads(storage.get(f"{place}{LEASE_ADDRESS}"))["run_id"] == run_id


def test_a_live_run_is_not_disturbed(
    storage: Storage, holding: Holding, clock: ManualClock
) -> None:
    with holding("one") as hold:
        clock.advance(timedelta(seconds=12))
        before = storage.get(LEASE_ADDRESS)
        with in_progress("one", "last heard of 12 s ago", "30 s after it died"), holding("two"):
            pass
        assert storage.get(LEASE_ADDRESS) == before
        hold.check()


def test_a_run_that_died_on_this_machine_is_replaced_at_once(
    storage: Storage, holding: Holding, clock: ManualClock
) -> None:
    program = "from ebbtide.processes import this_process; print(this_process())"
    dead = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()
    for holder in (this_process(), ELSEWHERE, None, "nonsense"):
        leave_behind(storage, clock.now, holder=holder)
        with in_progress("old"), holding("new"):
            pass
    leave_behind(storage, clock.now, holder=dead)
    with holding("new") as hold:
        assert hold.run_epoch == 8
        hold.check()


@pytest.mark.parametrize(
    ("silence", "expected"),
    [
        (timedelta(0), "refused"),
        (TTL - timedelta(microseconds=1), "refused"),
        (TTL, "watched"),
        (TTL + SKEW_MAX, "watched"),
        (TTL + SKEW_MAX + timedelta(microseconds=1), "taken"),
        (timedelta(days=9), "taken"),
        (-TTL + timedelta(microseconds=1), "refused"),
        (-TTL, "watched"),
        (-timedelta(days=9), "watched"),
    ],
)
def test_a_run_that_fell_silent(
    storage: Storage, holding: Holding, clock: ManualClock, silence: timedelta, expected: str
) -> None:
    leave_behind(storage, clock.now - silence)
    waits: list[float] = []
    options = {"wait": waits.append, "heartbeat": timedelta(seconds=7)}
    if expected == "refused":
        with in_progress("old"), holding("new", **options):
            pass
    else:
        with holding("new", **options) as hold:
            assert hold.run_epoch == 8
    # Watching lasts no shorter than the lease.
    assert waits == ([7.0] * 5 if expected == "watched" else [])


@pytest.mark.parametrize("meanwhile", ["heartbeat", "another", "release", "death", "deletion"])
def test_what_happens_to_a_file_that_is_watched(
    storage: Storage, holding: Holding, clock: ManualClock, meanwhile: str
) -> None:
    leave_behind(storage, clock.now - TTL)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) < 3:
            return
        if meanwhile == "heartbeat":
            leave_behind(storage, clock.now - TTL + timedelta(seconds=5))
        elif meanwhile == "another":
            leave_behind(storage, clock.now, run_id="another")
        elif meanwhile == "release":
            storage.put(LEASE_ADDRESS, json.dumps(content(storage) | {"run_id": None}).encode())
        elif meanwhile == "death":
            leave_behind(storage, clock.now - TTL, holder=dead_here())
        else:
            storage.delete([LEASE_ADDRESS])

    options = {"wait": wait, "heartbeat": timedelta(seconds=5)}
    if meanwhile in ("heartbeat", "another"):
        run_id = "another" if meanwhile == "another" else "old"
        with in_progress(run_id, "just now"), holding("new", **options):
            pass
    else:
        with holding("new", **options) as hold:
            assert hold.run_epoch == (1 if meanwhile == "deletion" else 8)
    assert len(waits) == 3


def dead_here() -> str:
    """This process as it would be named had it started at another time."""
    return f"{(this_process() or '').rpartition(' ')[0]} 0"


def test_a_heartbeat_in_the_last_moment_is_not_overwritten(
    storage: Storage, holding: Holding, clock: ManualClock
) -> None:
    leave_behind(storage, clock.now - TTL - SKEW_MAX - TTL)

    def beat(method: str, _: str) -> None:
        if method == "replace":
            leave_behind(storage, clock.now)

    with pytest.raises(Refused) as refused, holding("new", FaultyStorage(storage, before=beat)):
        pass
    assert refused.value.kind == "run_in_progress"
    assert refused.value.details == {"run_id": "old"}
    assert content(storage)["run_id"] == "old"


@pytest.mark.parametrize("before", ["nothing", "released", "silent"])
@pytest.mark.parametrize("runs", [("one", "two"), ("same", "same")])
def test_of_two_takers_at_once_one_wins(
    storage: Storage,
    holding: Holding,
    clock: ManualClock,
    before: str,
    runs: tuple[str, str],
) -> None:
    if before == "released":
        with holding("former"):
            pass
    elif before == "silent":
        leave_behind(storage, clock.now - timedelta(days=1))
    both_have_read = threading.Barrier(2)
    both_are_through = threading.Barrier(2)
    winners: list[str] = []
    refusals: list[str] = []

    def meet(method: str, _: str) -> None:
        if method in ("put", "replace") and not both_have_read.broken:
            with contextlib.suppress(threading.BrokenBarrierError):
                both_have_read.wait(20)
            both_have_read.abort()

    def take(run_id: str) -> None:
        try:
            with holding(run_id, FaultyStorage(storage, before=meet)) as hold:
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
    assert len(winners) == 1
    assert refusals == ["run_in_progress"]


def test_a_damaged_file_is_left_to_people(storage: Storage, holding: Holding) -> None:
    sound = b'{"run_id": "x", "run_epoch": 1, "holder": null, "beat_at": "2024-05-01T12:00:00Z"}'
    for data in (
        b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"run_id": null}',
        sound.replace(b', "beat_at": "2024-05-01T12:00:00Z"', b""),
        sound.replace(b'": 1', b'": "1"'), sound.replace(b"Z", b""), sound.replace(b'"x"', b"1"),
    ):  # fmt: skip
        storage.put(LEASE_ADDRESS, data)
        with pytest.raises(Refused) as refused, holding("new"):
            pass
        assert refused.value.kind == "run_in_progress"
        assert f"{storage.url}/{LEASE_ADDRESS} is damaged" in refused.value.message
        assert "then delete the file" in refused.value.message
        assert storage.get(LEASE_ADDRESS) == data


def test_heartbeats_keep_a_hold(storage: Storage, holding: Holding, clock: ManualClock) -> None:
    with holding("one", heartbeat=QUICK) as hold:
        for _ in range(3):
            clock.advance(TTL - timedelta(seconds=1))
            until(lambda: datetime.fromisoformat(content(storage)["beat_at"]) == clock.now)
            hold.check()
            with in_progress("one", "last heard of 0 s ago"), holding("two"):
                pass


@pytest.mark.parametrize("how", ["taken", "damaged", "deleted"])
@pytest.mark.parametrize("finder", ["check", "heartbeat"])
def test_a_hold_that_is_lost(
    storage: Storage, holding: Holding, clock: ManualClock, how: str, finder: str
) -> None:
    reads: list[str] = []
    watched = FaultyStorage(storage, after=lambda method, _: reads.append(method))
    with holding("one", watched, heartbeat=QUICK if finder == "heartbeat" else NEVER) as hold:
        if how == "taken":
            leave_behind(storage, clock.now, run_id="another")
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
        if finder == "heartbeat":
            assert reads == []
    assert (storage.get(LEASE_ADDRESS) if storage.head(LEASE_ADDRESS) else None) == after


def test_a_hold_of_the_same_run_is_another_hold(
    storage: Storage, holding: Holding, clock: ManualClock
) -> None:
    with holding("one") as first:
        clock.advance(TTL + SKEW_MAX + timedelta(seconds=1))
        with holding("one") as second:
            assert (first.run_epoch, second.run_epoch) == (1, 2)
            clock.advance(-TTL - SKEW_MAX)
            second.check()
            with lost("one"):
                first.check()
        assert content(storage)["run_id"] is None


@pytest.mark.parametrize("failing_methods", [("replace",), ("replace", "get_versioned")])
def test_a_storage_that_fails_for_a_while_is_no_loss_yet(
    storage: Storage, holding: Holding, clock: ManualClock, failing_methods: tuple[str, ...]
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

    with holding("one", FaultyStorage(storage, before=fail), heartbeat=QUICK) as hold:
        broken.set()
        clock.advance(TTL - timedelta(microseconds=1))
        until(lambda: attempts.count("replace") >= 3)
        if "get_versioned" in failing_methods:
            with pytest.raises(Failed):
                hold.check()
        else:
            hold.check()
        clock.advance(timedelta(microseconds=1))
        with lost("no heartbeat of run one reached the storage for 30 s"):
            hold.check()
        broken.clear()
        until(sound)
        assert datetime.fromisoformat(content(storage)["beat_at"]) == clock.now
    assert content(storage)["run_id"] is None


def test_a_check_that_cannot_read_says_so(storage: Storage, holding: Holding) -> None:
    faulty = FaultyStorage(storage, before=failing("get_versioned", times=2))
    with pytest.raises(Failed), holding("one", faulty):
        pass
    with holding("one", faulty_after_taking(storage)) as hold:
        with pytest.raises(Failed):
            hold.check()
        hold.check()


def faulty_after_taking(storage: Storage) -> FaultyStorage:
    """Fails the third reading of the file: the first after it was created and read back."""
    count = [0]

    def hook(method: str, address: str) -> None:
        if method == "get_versioned" and address == LEASE_ADDRESS:
            count[0] += 1
            if count[0] == 3:
                raise Failed("storage_error", "made to fail")

    return FaultyStorage(storage, before=hook)


@pytest.mark.parametrize("answer", [Failed("storage_error", "?"), Conflict("object_changed", "?")])
def test_a_heartbeat_whose_answer_was_lost_has_been_sent(
    storage: Storage, holding: Holding, clock: ManualClock, answer: EbbtideError
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

    with holding("one", FaultyStorage(storage, before, after), heartbeat=QUICK) as hold:
        closed.set()
        clock.advance(TTL)
        until(lambda: len(turned_away) >= 2)
        with lost("no heartbeat"):
            hold.check()
        deaf.set()  # One heartbeat gets through, but its answer does not.
        until(lambda: not deaf.is_set())
        turned_away.clear()
        until(lambda: len(turned_away) >= 2)
        hold.check()
        closed.clear()
    assert content(storage)["run_id"] is None


def test_letting_go_after_a_heartbeat_of_which_nothing_is_known(
    storage: Storage, holding: Holding
) -> None:
    armed, sent = threading.Event(), threading.Event()

    def after(method: str, _: str) -> None:
        if method == "replace" and armed.is_set() and not sent.is_set():
            sent.set()
            raise Failed("storage_error", "no answer")

    def before(method: str, _: str) -> None:
        if method == "get_versioned" and sent.is_set() and armed.is_set():
            armed.clear()
            raise Failed("storage_error", "no answer")

    faulty = FaultyStorage(storage, before, after)
    with holding("one", faulty, heartbeat=timedelta(seconds=0.2)):
        armed.set()
        until(lambda: sent.is_set() and not armed.is_set())
    assert content(storage)["run_id"] is None


@pytest.mark.parametrize("before", ["nothing", "silent"])
def test_a_taking_that_met_its_own_first_attempt_is_one(
    storage: Storage, holding: Holding, clock: ManualClock, before: str
) -> None:
    if before == "silent":
        leave_behind(storage, clock.now - timedelta(days=1))
    hook = failing("put", "replace", error=Conflict("object_exists", "?"), times=1)
    with holding("one", FaultyStorage(storage, after=hook)) as hold:
        hold.check()
        assert hold.run_epoch == (8 if before == "silent" else 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_letting_go_is_tried_twice(storage: Storage, holding: Holding, when: str) -> None:
    hook = failing("replace", times=1)
    faulty = FaultyStorage(storage, **{when: hook})
    with holding("one", faulty):
        pass
    assert content(storage)["run_id"] is None


def test_the_error_of_the_block_is_the_one_that_is_raised(
    storage: Storage, holding: Holding
) -> None:
    broken = threading.Event()

    def fail(method: str, address: str) -> None:
        if broken.is_set():
            raise Failed("storage_error", f"{method} {address}")

    with pytest.raises(RuntimeError, match="mine"), holding("one", FaultyStorage(storage, fail)):
        broken.set()
        raise RuntimeError("mine")
    assert content(storage)["run_id"] == "one"
    assert heartbeats() == 0


def test_a_storage_that_fails_at_the_end_leaves_the_file(
    storage: Storage, holding: Holding, clock: ManualClock
) -> None:
    with holding("one", FaultyStorage(storage, before=failing("replace"))):
        pass
    assert content(storage)["run_id"] == "one"
    with in_progress("one"), holding("two"):
        pass
    clock.advance(TTL + SKEW_MAX + timedelta(seconds=1))
    with holding("two") as hold:
        assert hold.run_epoch == 2
