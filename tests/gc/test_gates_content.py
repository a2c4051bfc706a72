"""Gates on what holds the live data: trees and ranges that are missing, damaged or newer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.errors import Gone
from ebbtide.store.content.layout import tree_address
from ebbtide.store.content.trees import Tree, read_tree
from tests.support.copies import contents_of
from tests.support.histories import PlannedWorld
from tests.support.refusals import check_readable, check_refused, nothing_deleted

Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def hurt(world: PlannedWorld, damage: Damage, file: Path) -> None:
    damage(file)
    if file.exists():
        os.utime(file, (world.now.timestamp(),) * 2)


def tree_of(world: PlannedWorld, commit_id: str) -> Tree:
    record = world.lake.commits.get(commit_id)
    return read_tree(world.lake.storage, *record.require_tree())


def test_a_damaged_range_or_tree(planned: PlannedWorld) -> None:
    """A range that a kept commit needs; a tree that a ref reaches, though its commit expired."""
    history = planned.history
    tree = tree_of(planned, history.middle)
    kept_range, kept_tree = (planned.root / each.address for each in (tree.ranges[0], tree))
    expired_tree = planned.root / tree_of(planned, history.expired).address
    damages: list[tuple[Path, Damage]] = [
        (kept_range, Path.unlink),
        (kept_range, flip),
        (kept_tree, Path.unlink),
        (kept_tree, flip),
        (expired_tree, Path.unlink),
        (expired_tree, flip),
    ]
    for file, damage in damages:
        data = file.read_bytes()
        hurt(planned, damage, file)
        with nothing_deleted(planned):
            report = planned.collector().run()
        what = "missing" if damage is Path.unlink else "corrupt"
        kind = f"{what}_node" if file is kept_range else f"{what}_tree"
        check_refused(report, kind, file.name, "restore it", "give up")
        if file is kept_range:
            check_readable(planned)
        file.write_bytes(data)
        hurt(planned, Path.touch, file)
    planned.swept()


def test_damaged_commit_can_be_given_up(planned: PlannedWorld) -> None:
    history = planned.history
    hurt(planned, flip, planned.root / tree_of(planned, history.middle).ranges[0].address)
    check_refused(planned.collector().run(), "corrupt_node")
    kept = contents_of(planned, history.head)

    planned.lake.give_up(history.middle, "the disk lost it")
    report = planned.collector().run()

    assert report.state == "swept"
    assert contents_of(planned, history.head) == kept
    assert contents_of(planned, "main") == kept | {"staged": b"staged"}
    with pytest.raises(Gone) as gone:
        planned.lake.objects.get(history.middle, "one")
    assert gone.value.kind == "commit_expired"
    assert "the disk lost it" in gone.value.message


def test_missing_tree_is_no_empty_one(planned: PlannedWorld) -> None:
    """The initial commit's tree holds nothing, and its file must be there all the same."""
    initial = planned.lake.commits.log("main")[-1]
    assert not tree_of(planned, initial.commit_id).ranges
    assert initial.tree_id is not None
    (planned.root / tree_address(initial.tree_id)).unlink()
    with nothing_deleted(planned):
        check_refused(planned.collector().plan(), "missing_tree")
