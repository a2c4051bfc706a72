"""The lanes of a commit graph: lines go on from row to row, and windows are parts of the whole."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.model import Commit
from ebbtide.server.pages import graph
from ebbtide.server.pages.graph import LANES_MAX, newest_first, rows

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


@given(histories(), st.data())
@settings(max_examples=300)
def test_lines_go_on(commits: list[Commit], data: st.DataObject) -> None:
    first = data.draw(st.sampled_from([None, *(commit.commit_id for commit in commits)]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph, "LANES_MAX", 1000)
        drawn = rows(commits, start=0, stop=len(commits), first_lane=first)
    assert [row.commit for row in drawn] == commits
    known = {commit.commit_id for commit in commits}
    lanes = {row.commit.commit_id: row.lane for row in drawn}
    at_bottom: set[int] = set()
    for row in drawn:
        assert set(row.above) | set(row.past) == at_bottom
        assert not set(row.above) & set(row.past)
        assert row.lane not in row.past
        parents = [each for each in row.commit.parent_ids if each in known]
        assert bool(row.below) == bool(parents)
        assert len(row.below) <= len(parents)
        at_bottom = set(row.past) | set(row.below)
    assert not at_bottom, "every line ends at a commit"
    children = {parent for commit in commits for parent in commit.parent_ids}
    for row in drawn:
        assert bool(row.above) == (row.commit.commit_id in children)
    if first is not None:
        assert lanes[first] == 0


@given(histories())
def test_only_so_many_lanes_are_drawn(commits: list[Commit]) -> None:
    for row in rows(commits, start=0, stop=len(commits)):
        assert max(row.lane, *row.above, *row.past, *row.below, 0) < LANES_MAX


@given(histories(), st.integers(0, 25), st.integers(1, 10))
def test_a_window_is_a_part_of_the_whole(commits: list[Commit], start: int, length: int) -> None:
    whole = rows(commits, start=0, stop=len(commits))
    assert rows(commits, start=start, stop=start + length) == whole[start : start + length]


def test_many_commits_take_little_time() -> None:
    """30,000 commits on 1,000 branches."""
    commits = [
        Commit(
            f"{number:06d}",
            (f"{number - 1000:06d}",) if number >= 1000 else (),
            START + timedelta(minutes=number),
            "tree",
        )
        for number in range(30_000)
    ]
    began = time.monotonic()
    drawn = rows(newest_first(commits), start=29_900, stop=30_000)
    assert len(drawn) == 100
    assert time.monotonic() - began < 5
