"""A run while an operation is half-way. The grace is zero, so that it protects nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ebbtide.store.commits import committing, merging
from ebbtide.store.context import RepositoryContext
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import Uploads
from tests.gc.lines import (
    Contents,
    Known,
    Line,
    Reader,
    attempt,
    check_commit,
    check_gone,
    check_refs,
    make_line,
)
from tests.gc.operations import POLICY
from tests.support.world import World

TRASH: Final = timedelta(days=1)
SETTINGS: Final[dict[str, Any]] = {
    "range_entries_target": 2,
    "lease_ttl": timedelta(hours=1),
    "trash_time": TRASH,
}
AT_ONCE: Final[dict[str, Any]] = {"grace": timedelta(0), "unsafe": True}


def merge(line: Line, lake: Repository) -> dict[str, Contents]:
    lake.commits.merge(line.dangling, line.name)
    return {line.name: line.known_of(line.head) | line.held("side")}


def revert(line: Line, lake: Repository) -> dict[str, Contents]:
    lake.commits.revert(line.name, line.deleting)
    return {line.name: line.known_of(line.head) | line.held("lost")}


def copy(line: Line, lake: Repository) -> dict[str, Contents]:
    lake.objects.copy(line.name, line.path("copy"), line.old, line.path("lost"))
    copied = {line.path("copy"): line.path("lost").encode()}
    return {line.name: line.known_of(line.head) | copied}


def sign(line: Line, lake: Repository) -> dict[str, Contents]:
    lake.locators.sign_path(line.old, line.path("lost"))
    return {line.old: line.known_of(line.old)}


def read(line: Line, lake: Repository) -> dict[str, Contents]:
    assert lake.objects.get(line.dangling, line.path("side")) == line.path("side").encode()
    return {}


def compare(line: Line, lake: Repository) -> dict[str, Contents]:
    changes = lake.commits.diff(line.deleting, line.dangling)
    assert [change.path for change in changes] == [line.path("side")]
    return {}


def upload(line: Line, lake: Repository) -> dict[str, Contents]:
    lake.objects.put(line.name, line.path("upload"), line.path("upload").encode())
    return {line.name: line.known_of(line.head) | line.held("upload")}


def commit(line: Line, lake: Repository) -> dict[str, Contents]:
    """The new tree shares ranges with its parent's."""
    lake.objects.put(line.name, line.path("zz"), line.path("zz").encode())
    made = lake.commits.commit(line.name, "while a run goes on")
    parent = lake.context.tree_of(lake.commits.get(line.head))
    assert set(lake.context.tree_of(made).ranges) & set(parent.ranges)
    return {line.name: line.known_of(line.head) | line.held("zz")}


Work = Callable[[Line, Repository], dict[str, Contents]]
WORKS: Final[tuple[tuple[Work, object, str, bool], ...]] = (
    (merge, merging, "publish", True),
    (merge, merging, "merge_trees", True),
    (merge, RepositoryContext, "tree_of", True),
    (revert, merging, "publish", True),
    (copy, Uploads, "_stage", True),
    (sign, RepositoryContext, "tree_of", True),
    (read, RepositoryContext, "tree_of", True),
    (compare, RepositoryContext, "tree_of", True),
    (upload, Uploads, "_stage", False),
    (commit, committing, "publish", False),
    (commit, RepositoryContext, "tree_of", False),
)
"""What is done, the function before which it stops, and whether it needs data that expired."""


def stop_once(patch: pytest.MonkeyPatch, place: object, name: str, act: Callable[[], None]) -> None:
    """`act` is done before the first call of a function, or of a method of a class."""
    original = getattr(place, name)

    def stopping(*given: Any, **named: Any) -> Any:
        patch.undo()
        act()
        return original(*given, **named)

    patch.setattr(place, name, stopping)


@pytest.mark.parametrize(
    ("work", "place", "name", "needs_expired", "is_swept"),
    [
        *((*each, True) for each in WORKS),
        *((*each, False) for each in WORKS if each[2] != "tree_of"),
    ],
)
def test_suspended_work(
    tmp_path: Path, work: Work, place: object, name: str, needs_expired: bool, is_swept: bool
) -> None:
    """If the run is over, the operation is told that its data has gone. If there is only a plan,
    its sweep takes nothing of the result."""
    with (
        closing(World(tmp_path, settings=SETTINGS)) as world,
        pytest.MonkeyPatch.context() as patch,
    ):
        world.keep(**POLICY)
        known = Known()
        line = make_line(world, known, "line", initial=world.lake.commits.resolve("main"))
        world.clock.advance(2 * TRASH)
        line.head = line.save("line", 1, put=[f"many/{number}" for number in range(9)])
        lake = Reader(world).lake
        plans: list[str] = []

        def meanwhile() -> None:
            plans.append(world.collector(**AT_ONCE).plan().run_id)
            if is_swept:
                sweep()

        def sweep() -> None:
            report = world.collector(**AT_ONCE).sweep(plans[0])
            assert report.state == "swept"
            assert not is_swept or set(report.deleted_kinds) >= {"tree", "range", "object"}

        stop_once(patch, place, name, meanwhile)
        outcome = attempt(lambda line: work(line, lake), line)
        if is_swept and needs_expired:
            check_gone(outcome.error, plans[0])
        else:
            assert outcome.error is None
        if not is_swept:
            sweep()
        reader = Reader(world)
        for ref, expected in outcome.reads.items():
            assert reader.contents(ref) == expected
        check_refs(reader, known)
        for commit_id, contents in known.contents.items():
            check_commit(reader, commit_id, contents)
