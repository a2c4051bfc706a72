"""What holds the bytes: figures against the definition, on random stores and on both engines."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.gc.engines.base import Engine
from tests.gc.test_random_stores import EVENTS, Event, History, play
from tests.gc.test_whatif import POLICIES, Written
from tests.support.engines import INLINE, on_engines
from tests.support.holding import check_usage, definition
from tests.support.randomized import examples, randomized
from tests.support.world import temporary_world

HOUR = timedelta(hours=1)

any_store = given(
    events=st.lists(EVENTS, min_size=3, max_size=14),
    policy=st.none() | POLICIES,
    hold=st.booleans(),
    swept=st.booleans(),
    staged=st.booleans(),
    grace=st.sampled_from([HOUR, timedelta(days=1000)]),
)


def check_store(
    engine: Engine,
    events: list[Event],
    policy: Written | None,
    hold: bool,
    swept: bool,
    staged: bool,
    grace: timedelta,
) -> None:
    with temporary_world() as world:
        world.engine = engine
        history = History()
        play(world, history, events)
        if hold:
            oldest = min(history.commits.values(), key=lambda commit: commit.created_at)
            world.lake.retention.hold(oldest.commit_id, "audit")
        if policy is not None:
            world.keep(**policy)
        if swept:
            assert world.collect().state == "swept"
        if staged:
            world.lake.objects.put("main", "a", b"staged")
        found = world.collector(grace=grace).usage()
        check_usage(found, definition(world.format(), grace))


@randomized("usage of stores")
@examples("usage of stores")
@any_store
def test_figures_are_those_of_the_definition(
    events: list[Event],
    policy: Written | None,
    hold: bool,
    swept: bool,
    staged: bool,
    grace: timedelta,
) -> None:
    check_store(INLINE, events, policy, hold, swept, staged, grace)


@on_engines("spark", "joins")
@randomized("usage of stores on Spark")
@examples("usage of stores on Spark")
@any_store
def test_so_they_are_on_spark(
    engine: Engine,
    events: list[Event],
    policy: Written | None,
    hold: bool,
    swept: bool,
    staged: bool,
    grace: timedelta,
) -> None:
    check_store(engine, events, policy, hold, swept, staged, grace)
