"""Files that cannot be deleted: what they point at stays, so that no pointer leads nowhere."""

from __future__ import annotations

import pytest

from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.storage import DeleteOutcome, LocalStorage
from ebbtide.storage.failures import LOCKED
from tests.support.copies import listing, verify
from tests.support.engines import INLINE
from tests.support.histories import PlannedWorld
from tests.support.icechunk_lake import candidates

FOLDERS = {"tree": "_ebbtide/trees/", "range": "_ebbtide/ranges/", "object": "data/"}


@pytest.mark.parametrize("kind", ["tree", "range"])
def test_what_it_points_at_stays(planned: PlannedWorld, kind: str) -> None:
    doomed = candidates(planned.collector().show(planned.run_id))
    locked = planned.root / next(name for name in doomed if name.startswith(FOLDERS[kind]))
    data = locked.read_bytes()
    locked.unlink()
    locked.mkdir()  # a file that cannot be deleted

    report = planned.collector().sweep(planned.run_id)

    assert (report.state, report.counts["failed"].objects) == ("incomplete", 1)
    order = EmbeddedLayout().delete_order
    behind = [FOLDERS[each] for each in order[order.index(kind) + 1 :] if each in FOLDERS]
    held_back = {name for name in doomed if name.startswith(tuple(behind))}
    assert held_back
    assert held_back <= listing(planned.root).keys()
    locked.rmdir()
    locked.write_bytes(data)
    assert planned.collector().sweep(planned.run_id).state == "swept"
    assert not doomed.keys() & listing(planned.root).keys()
    verify(planned)


def test_files_of_which_a_lock_keeps_versions_hold_nothing_back(
    planned: PlannedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are hidden. A directory stands for a bucket with object lock."""

    def refuse(_self: LocalStorage, addresses: list[str]) -> list[DeleteOutcome]:
        return [DeleteOutcome(each, "failed", f"{LOCKED}until tomorrow") for each in addresses]

    planned.engine = INLINE
    doomed = candidates(planned.collector().show(planned.run_id))
    assert len({each.partition("/")[0] for each in doomed}) > 1
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete_versions", refuse)
        report = planned.collector(delete_versions=True).sweep(planned.run_id)
    assert report.state == "incomplete"
    assert report.counts["locked"] == report.counts["failed"]
    assert report.counts["failed"].objects == len(doomed)
    assert not doomed.keys() & listing(planned.root).keys()
    assert planned.collector(delete_versions=True).sweep(planned.run_id).state == "swept"
    verify(planned)
