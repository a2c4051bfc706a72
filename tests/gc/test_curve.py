"""The curve of retention: each point against the definition, and against a plan with its policy."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import InvalidInput
from ebbtide.gc.engines.base import Engine
from ebbtide.retention import Policy
from tests.gc.test_random_stores import EVENTS, Event, History, play
from tests.gc.test_whatif import POLICIES, Written
from tests.support.engines import INLINE, on_engines
from tests.support.holding import check_curve
from tests.support.randomized import examples, randomized
from tests.support.world import World, temporary_world

HOUR = timedelta(hours=1)

any_store = given(
    events=st.lists(EVENTS, min_size=3, max_size=14),
    policy=st.none() | POLICIES,
    hold=st.booleans(),
    swept=st.booleans(),
    rule=st.sampled_from(["*", "*", "main", "b*"]),
)


def check_store(
    engine: Engine,
    events: list[Event],
    policy: Written | None,
    hold: bool,
    swept: bool,
    rule: str,
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
        world.lake.objects.put("main", "a", b"staged")
        if rule == "b*" and not any(ref.name.startswith("b") for ref in world.lake.branches.list()):
            with pytest.raises(InvalidInput, match="no branch matches"):
                world.collector().curve(rule)
            rule = "*"
        found = world.collector().curve(rule)
        check_curve(found, world.format(), HOUR)
        some = found.points[:: len(found.points) // 3]
        policies = [Policy.parse(point.policy) for point in some]
        looked = world.collector().what_if(policies)
        for point, other in zip(
            [found.present, *some], [looked.present, *looked.others], strict=True
        ):
            assert point.counts == other.counts, point.label
            assert (point.active_count, point.lost_count) == (other.active_count, len(other.lost))


@randomized("curves of stores")
@examples("curves of stores")
@any_store
def test_points_are_those_of_plans(
    events: list[Event], policy: Written | None, hold: bool, swept: bool, rule: str
) -> None:
    check_store(INLINE, events, policy, hold, swept, rule)


@on_engines("spark", "joins")
@randomized("curves of stores on Spark")
@examples("curves of stores on Spark")
@any_store
def test_so_they_are_on_spark(
    engine: Engine,
    events: list[Event],
    policy: Written | None,
    hold: bool,
    swept: bool,
    rule: str,
) -> None:
    check_store(engine, events, policy, hold, swept, rule)


def test_the_present_policy_is_a_point(world: World) -> None:
    world.keep(default={"keep_within": "8d", "keep_daily": 2})
    found = world.collector().curve()
    (point,) = [each for each in found.points if found.is_present(each)]
    assert (point.axis, point.label) == ("period", "8d")
    assert point.counts == found.present.counts
    world.keep(default={"keep_last": 4}, branches={"main": "3d"})
    found = world.collector().curve("*")
    assert [each.label for each in found.points if found.is_present(each)] == ["4"]
    found = world.collector().curve("main")
    assert [each.label for each in found.points if found.is_present(each)] == ["3d"]


def test_the_rule_that_changes(world: World) -> None:
    """The default rule, unless it decides no branch: each table of Delta may have its own."""
    for branches, usual in (
        ({"b*": "3d"}, "*"),
        ({"m*": "3d", "b*": "2d"}, "m*"),
        ({"main": "3d", "m*": "2d", "x": "1d"}, "main"),
    ):
        world.keep(default="9d", branches=branches)
        assert world.collector().curve().rule == usual
    for name in ("mine", "more"):
        world.lake.branches.create(name, "main")
    found = world.collector().curve()
    assert found.rule == "m*"
    assert [each.label for each in found.points if found.is_present(each)] == ["2d"]
    with pytest.raises(InvalidInput, match="no branch matches 'nobody'"):
        world.collector().curve("nobody")


def test_without_a_policy_nothing_is_lost_now(world: World) -> None:
    found = world.collector().curve()
    assert found.present.policy is None
    assert not any(found.is_present(each) for each in found.points)


def test_no_period_decides_in_mode_rewrite(world: World) -> None:
    world.keep(default="7d", mode="rewrite")
    with pytest.raises(InvalidInput) as caught:
        world.collector().curve()
    assert "mode rewrite" in caught.value.message
