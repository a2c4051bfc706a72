"""Gates on what holds the live data: trees and ranges that are missing, damaged or newer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from ebbtide.errors import Conflict, Gone
from ebbtide.store.content import files
from ebbtide.store.content.layout import tree_address
from ebbtide.store.content.trees import Tree, read_tree
from ebbtide.store.database.schema import commits
from tests.support.copies import contents_of
from tests.support.histories import PlannedWorld
from tests.support.refusals import check_readable, check_refused, nothing_deleted

Damage = Callable[[Path], object]


def truncate(path: Path) -> None:
    """Cut a file's end off."""
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    """Leave nothing but the name."""
    path.write_bytes(b"")


def hurt(world: PlannedWorld, damage: Damage, file: Path) -> None:
    """Damage a file now, by the clock of the test."""
    damage(file)
    if file.exists():
        os.utime(file, (world.now.timestamp(),) * 2)


def tree_of(world: PlannedWorld, commit_id: str) -> Tree:
    """The tree of a commit."""
    record = world.lake.commits.get(commit_id)
    return read_tree(world.lake.storage, *record.require_tree())


def tree_file(world: PlannedWorld, commit_id: str) -> Path:
    """The file of a commit's tree."""
    return world.root / tree_of(world, commit_id).address


def range_file(world: PlannedWorld, commit_id: str) -> Path:
    """The file of the one range that a commit has."""
    (info,) = tree_of(world, commit_id).ranges
    return world.root / info.address


def test_a_damaged_range_or_tree(planned: PlannedWorld) -> None:
    """A range that a kept commit needs; a tree that a ref reaches, though its commit expired."""
    history = planned.history
    kept_range = range_file(planned, history.middle)
    kept_tree, expired_tree = (tree_file(planned, c) for c in (history.middle, history.expired))
    damages: list[tuple[Path, Damage]] = [
        (kept_range, Path.unlink),
        (kept_range, truncate),
        (kept_range, flip),
        (kept_range, empty),
        (kept_tree, Path.unlink),
        (kept_tree, flip),
        (expired_tree, Path.unlink),
        (expired_tree, truncate),
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


@pytest.mark.parametrize("family", ["tree", "node"])
def test_file_of_an_unknown_version(planned: PlannedWorld, family: str) -> None:
    commit_id = planned.history.middle
    tree = tree_of(planned, commit_id)
    (info,) = tree.ranges
    if family == "node":
        checksum = make_newer(planned.root / info.address)
        make_newer(planned.root / tree.address, version=b"1", old=info.checksum, new=checksum)
    else:
        make_newer(planned.root / tree.address)
    record_checksum(planned, tree, (planned.root / tree.address).read_bytes())

    with nothing_deleted(planned):
        report = planned.collector().run()
    check_refused(
        report, "unknown_format_version", "has format version 2", "knows 1", "use a newer"
    )
    check_readable(planned)


def make_newer(path: Path, *, version: bytes = b"2", old: str = "", new: str = "") -> str:
    """Rewrite a file as one of another version, its checksum column changed; its checksum."""
    table = pq.read_table(path)
    if old:
        column = [new if text == old else text for text in table.column("checksum").to_pylist()]
        index = table.column_names.index("checksum")
        field = table.schema.field(index)
        table = table.set_column(index, field, pa.array(column, pa.string()))
    metadata = {**(table.schema.metadata or {}), b"ebbtide.format": version}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return files.checksum_of(path.read_bytes())


def record_checksum(world: PlannedWorld, tree: Tree, data: bytes) -> None:
    """Make the database believe in the tree's file as it is now."""
    with world.store.metadata.transaction() as tx:
        tx.execute(
            sa.update(commits)
            .where(commits.c.tree_id == tree.tree_id)
            .values(tree_checksum=files.checksum_of(data))
        )


def test_damaged_commit_can_be_given_up(planned: PlannedWorld) -> None:
    history = planned.history
    hurt(planned, flip, range_file(planned, history.middle))
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


def test_damaged_head_cannot_be_given_up(planned: PlannedWorld) -> None:
    history = planned.history
    hurt(planned, flip, range_file(planned, history.head))
    with pytest.raises(Conflict) as refused:
        planned.lake.give_up(history.head, "the disk lost it")
    assert refused.value.kind == "commit_in_use"
    assert "move or delete it first" in refused.value.message
    with nothing_deleted(planned):
        check_refused(planned.collector().run(), "corrupt_node")


def test_missing_tree_is_no_empty_one(planned: PlannedWorld) -> None:
    """The initial commit's tree holds nothing, and its file must be there all the same."""
    initial = planned.lake.commits.log("main")[-1]
    assert not tree_of(planned, initial.commit_id).ranges
    assert initial.tree_id is not None
    (planned.root / tree_address(initial.tree_id)).unlink()
    with nothing_deleted(planned):
        check_refused(planned.collector().plan(), "missing_tree")
