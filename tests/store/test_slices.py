"""Slices: where fresh addresses lie, and when the next directory begins."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from ebbtide.ids import instant_of
from ebbtide.settings import Settings
from ebbtide.store.content.layout import classify
from ebbtide.store.content.slices import CurrentSlice

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def make(objects_max: int = 1000) -> CurrentSlice:
    return CurrentSlice(Settings(slice_objects_max=objects_max, slice_age_max=HOUR))


def slice_of(address: str) -> str:
    return address.split("/")[1]


def test_addresses_are_of_objects_and_of_one_slice() -> None:
    addresses = make().new_addresses(20, now=NOW)
    assert set(classify(pa.array(addresses)).to_pylist()) == {"object"}
    assert len(set(addresses)) == 20
    assert len({slice_of(each) for each in addresses}) == 1
    assert instant_of(slice_of(addresses[0])) == NOW
    assert make().new_addresses(0, now=NOW) == []


def test_a_slice_closes_when_it_is_full() -> None:
    """Within one call, too. What is counted begins anew in each slice."""
    slices = make(objects_max=3)
    found = [slice_of(each) for count in (1, 1, 5) for each in slices.new_addresses(count, now=NOW)]
    assert [*Counter(found).values()] == [3, 3, 1]
    later = [slice_of(each) for each in slices.new_addresses(3, now=NOW + HOUR)]
    assert len(set(later)) == 1


def test_a_slice_closes_at_its_age_or_when_it_is_of_the_future() -> None:
    """The clock was ahead when it was opened. Threads may read the time in another order."""
    slices = make()
    last = HOUR - timedelta(microseconds=1)
    first, just_before, exactly, still, back = (
        slice_of(slices.new_addresses(1, now=NOW + moment)[0])
        for moment in (timedelta(0), last, HOUR, timedelta(microseconds=1), timedelta(0))
    )
    assert first == just_before
    assert exactly < first, "the newest sorts first"
    assert instant_of(exactly) == NOW + HOUR
    assert still == exactly
    assert instant_of(back) == NOW


def test_two_processes_never_share_a_slice() -> None:
    one, other = (make().new_addresses(1, now=NOW)[0] for _ in range(2))
    assert slice_of(one) != slice_of(other), "even if they open it in one microsecond"


def test_threads_share_slices_and_no_address() -> None:
    slices = make(objects_max=50)
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda n: slices.new_addresses(n % 7, now=NOW), range(400)))
    addresses = [address for batch in batches for address in batch]
    assert len(set(addresses)) == len(addresses) == sum(n % 7 for n in range(400))
    counts = Counter(map(slice_of, addresses))
    assert sorted(counts.values(), reverse=True)[:-1] == [50] * (len(addresses) // 50)
