"""Other policies: figures agree with plans that are really made, and nothing is left behind."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import InvalidInput, Refused
from ebbtide.gc.parts import Count, total_by_kind
from ebbtide.gc.report import RunReport
from ebbtide.gc.whatif import Alternative, WhatIf
from ebbtide.retention import Policy
from ebbtide.store.content.layout import tree_address
from ebbtide.store.embedded import DATABASE_FILE
from tests.gc.test_random_stores import EVENTS, Event, History, play
from tests.support.gone import expire_repository, fill, remover
from tests.support.histories import make_history
from tests.support.icechunk_lake import reasons
from tests.support.randomized import examples, randomized
from tests.support.world import START, World, temporary_world

RULES = st.one_of(
    st.sampled_from(["1d", "3d", "7d", "20d", "keep"]),
    st.fixed_dictionaries({"keep_last": st.integers(1, 4)}),
    st.fixed_dictionaries({"keep_daily": st.integers(1, 4), "keep_within": st.just("2d")}),
)
POLICIES = st.fixed_dictionaries(
    {"default": RULES},
    optional={
        "branches": st.dictionaries(st.sampled_from(["main", "dev", "b*"]), RULES, max_size=3),
        "tags": st.sampled_from(["keep", "3d", "7d"]),
    },
)
Written = dict[str, Any]  # a policy as Policy.parse takes it


@pytest.fixture
def world(world: World) -> World:
    """A store with a history of which a week is kept."""
    make_history(world)
    return world


def ask(world: World, *policies: Written, **options: Any) -> WhatIf:
    return world.collector(**options).what_if([Policy.parse(each) for each in policies])


def check_agrees(world: World, found: Alternative, report: RunReport) -> None:
    """A plan that was really made has the same figures."""
    plan = world.collector().plan_of(report.run_id)
    classes = {name: count for name, count in plan.counts.items() if name != "listed"}
    assert found.counts == classes
    assert found.kinds == total_by_kind(plan.candidates)
    assert (found.active_count, found.expired_count) == (plan.active_count, plan.expired_count)
    assert found.policy == plan.policy
    assert found.warnings == plan.warnings
    said = [
        (ref.kind, ref.name, ref.rule, ref.commit_count, ref.kept_count) for ref in found.by_ref
    ]
    assert said == [
        (ref["kind"], ref["name"], ref["rule"], ref["commit_count"], ref["kept_count"])
        for ref in plan.by_ref
    ]


@randomized("compared policies")
@examples("compared policies")
@given(
    events=st.lists(EVENTS, min_size=3, max_size=12),
    present=st.none() | POLICIES,
    others=st.lists(POLICIES, min_size=1, max_size=3),
    hold=st.booleans(),
    swept=st.booleans(),
)
def test_figures_agree_with_plans(
    events: list[Event],
    present: Written | None,
    others: list[Written],
    hold: bool,
    swept: bool,
) -> None:
    with temporary_world() as world:
        history = History()
        play(world, history, events)
        if hold:
            oldest = min(history.commits.values(), key=lambda commit: commit.created_at)
            world.lake.retention.hold(oldest.commit_id, "audit")
        if present is not None:
            world.keep(**present)
        if swept:
            assert world.collect().state == "swept"
        found = ask(world, *others)
        plan = world.collector().plan()
        check_agrees(world, found.present, plan)
        kept_now = set(reasons(plan))
        for written, other in zip(others, found.others, strict=True):
            world.keep(**written)
            report = world.collector().plan()
            check_agrees(world, other, report)
            kept = set(reasons(report))
            assert {each.commit_id for each in other.lost} == kept_now - kept
            assert other.regained_count == len(kept - kept_now)


def test_what_is_lost(world: World) -> None:
    """By name, with why it is kept now; and how far back each branch goes."""
    found = ask(world, {"default": "1d"}, {"default": "keep"})
    shorter, longer = found.others
    assert [(START - each.created_at).days for each in shorter.lost] == [8, 5]
    assert "when its 7d window opened" in shorter.lost[0].reason
    (now,), (less,), (more,) = (
        [ref for ref in each.by_ref if ref.name == "main"]
        for each in (found.present, shorter, longer)
    )
    ages = [None if ref.oldest_at is None else (START - ref.oldest_at).days for ref in (now, less)]
    assert ages == [8, 2]
    assert more.oldest_at is not None
    assert (START - more.oldest_at).days == 10
    assert (now.fewer_count, less.fewer_count, more.fewer_count) == (0, 2, -2)
    assert longer.regained_count == 3
    assert shorter.reclaimable.objects > found.present.reclaimable.objects
    assert longer.reclaimable == Count(1, 4), "but for a temporary file"
    refs = [ref for ref in shorter.by_ref if ref.kind != "beyond"]
    assert sum(rule.ref_count for rule in shorter.by_rule) == len(refs)


def state_of(world: World) -> tuple[dict[str, tuple[int, bytes]], list[str]]:
    """Every file of the store's storage, and all that is in its database."""
    files = {
        str(path.relative_to(world.root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in world.root.rglob("*")
        if path.is_file()
    }
    database = sqlite3.connect(world.directory / "store" / DATABASE_FILE)
    try:
        return files, list(database.iterdump())
    finally:
        database.close()


def test_nothing_is_left_behind(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = state_of(world)
    ask(world, {"default": "1d"}, {"default": "3d"})
    own = tmp_path / "own"
    ask(world, {"default": "1d"}, run_dir=str(own))
    assert state_of(world) == before
    assert list(own.iterdir()) == []
    tree_id, _ = world.lake.commits.get("main").require_tree()
    (world.root / tree_address(tree_id)).unlink()
    with pytest.raises(Refused) as caught:
        ask(world, {"default": "1d"})
    assert caught.value.kind == "missing_tree"
    assert list(temporary.iterdir()) == []


def test_beside_a_run(world: World) -> None:
    with world.format().hold("a run") as hold:
        before = state_of(world)
        found = ask(world, {"default": "1d"})
        assert found.present.reclaimable.objects
        hold.check()
        assert [line for line in state_of(world)[1] if "gc_leases" not in line] == [
            line for line in before[1] if "gc_leases" not in line
        ]
        assert state_of(world)[0] == before[0]


def test_the_grace_counts(world: World) -> None:
    assert ask(world, {"default": "1d"}).others[0].counts["young"] == Count()
    found = ask(world, {"default": "1d"}, grace=START - START.replace(year=START.year - 3))
    assert found.others[0].reclaimable == Count()
    assert found.others[0].counts["young"].objects


def test_a_gone_repository(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        fill(world)
        with pytest.raises(InvalidInput):
            remover(world.store, expire_repository(world)).what_if(
                [Policy.parse({"default": "1d"})]
            )
    finally:
        world.close()
