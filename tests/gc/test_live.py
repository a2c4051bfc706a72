"""What a mark does about trees that are not there."""

from __future__ import annotations

import pytest

from ebbtide.errors import Refused
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc.relations.live import Mark, MarkedTrees, write_trees
from ebbtide.gc.runs import RunFolder, TaskFiles
from tests.support.engines import INLINE
from tests.support.world import World


def test_trees_that_may_be_missing(world: World) -> None:
    """Those are passed over, with all that they alone name; others are not."""
    world.save("main", days_ago=2, put=["a"])
    lost_commit = world.save("main", days_ago=1, put=["b"])
    with world.format().reading() as reading:
        roots = reading.roots()
    (lost,) = (each.tree_id for each in roots.commits if each.commit_id == lost_commit)
    storage, layout = world.lake.storage, EmbeddedLayout()
    trees = frozenset(each.tree_id for each in roots.commits)

    def live(name: str, *, lenient: frozenset[str]) -> int:
        place = TaskFiles(storage, layout, RunFolder.inside(storage, "0" * 32), name)
        marked = MarkedTrees(recorded=trees, data=trees, lenient=lenient)
        known = write_trees(place.folder, place.prefixed("known"), marked, roots.tree_checksums)
        return Mark.of(INLINE, place, known).live().collect().num_rows

    whole = live("whole", lenient=frozenset())
    storage.delete([layout.tree_address(lost)])
    assert 0 < live("lenient", lenient=frozenset({lost})) < whole
    for lenient in (frozenset[str](), trees - {lost}):
        with pytest.raises(Refused) as refused:
            live("strict", lenient=lenient)
        assert refused.value.kind == "missing_tree"
