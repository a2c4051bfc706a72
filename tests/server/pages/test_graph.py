"""The lanes of a commit graph: lines go on from row to row, and windows are parts of the whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.model import Commit
from ebbtide.server.pages import graph
from ebbtide.server.pages.graph import LANES_MAX, newest_first, rows
from tests.support.randomized import examples, randomized

START = datetime(2030, 1, 1, tzinfo=UTC)


@st.composite
def histories(draw: st.DrawFn) -> list[Commit]:
    """Commits with up to three parents each, of which some are not there."""
    commits: list[Commit] = []
    for number in range(draw(st.integers(1, 25))):
        known = [commit.commit_id for commit in commits] + ["lost"]
        parents = draw(st.lists(st.sampled_from(known), max_size=3, unique=True))
        commits.append(
            Commit(f"{number:04d}", tuple(parents), START + timedelta(hours=number), "tree")
        )
    return newest_first(commits)


@randomized("commit graphs")
@examples("commit graphs")
@given(histories(), st.integers(0, 25), st.integers(1, 10), st.data())
def test_lines_go_on(commits: list[Commit], start: int, length: int, data: st.DataObject) -> None:
    """From row to row. Only so many lanes are drawn, and a window is a part of the whole."""
    whole = rows(commits, start=0, stop=len(commits))
    assert rows(commits, start=start, stop=start + length) == whole[start : start + length]
    for row in whole:
        assert max(row.lane, *row.above, *row.past, *row.below, 0) < LANES_MAX
    first = data.draw(st.sampled_from([None, *(commit.commit_id for commit in commits)]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph, "LANES_MAX", 1000)
        drawn = rows(commits, start=0, stop=len(commits), first_lane=first)
    assert [row.commit for row in drawn] == commits
    known = {commit.commit_id for commit in commits}
    lanes = {row.commit.commit_id: row.lane for row in drawn}
    children = {parent for commit in commits for parent in commit.parent_ids}
    at_bottom: set[int] = set()
    for row in drawn:
        assert set(row.above) | set(row.past) == at_bottom
        assert not set(row.above) & set(row.past)
        assert row.lane not in row.past
        parents = [each for each in row.commit.parent_ids if each in known]
        assert bool(row.below) == bool(parents)
        assert len(row.below) <= len(parents)
        assert bool(row.above) == (row.commit.commit_id in children)
        at_bottom = set(row.past) | set(row.below)
    assert not at_bottom, "every line ends at a commit"
    assert first is None or lanes[first] == 0


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python a piece of work runs."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:  # the type is recursive
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_many_commits_take_time_in_proportion() -> None:
    """A window at the end of a history with many branches: of twice as many commits, on twice as
    many branches, the work is twice as much."""

    def work_for(count: int) -> int:
        branches = count // 30
        commits = [
            Commit(
                f"{number:06d}",
                (f"{number - branches:06d}",) if number >= branches else (),
                START + timedelta(minutes=number),
                "tree",
            )
            for number in range(count)
        ]
        listed = newest_first(commits)
        return lines_run(lambda: rows(listed, start=count - 20, stop=count))

    assert work_for(1_800) < 2.5 * work_for(900)
