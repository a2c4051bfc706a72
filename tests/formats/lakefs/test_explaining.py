"""What is said of a commit of a lakeFS repository after a sweep with a quarantine."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.audit.explain import Explainer
from tests.formats.lakefs.test_needed_again import WEEK, lacks, run
from tests.formats.lakefs.world import DAY, LakefsWorld, old_commit
from tests.support.engines import INLINE


@pytest.fixture
def expired(world: LakefsWorld) -> str:
    return old_commit(world)[0]


def explained(world: LakefsWorld, asked: str) -> Any:
    return Explainer(world.repository(), engine=INLINE, grace=DAY, limit=100).explain(asked)


def test_a_commit_is_quarantined_until_the_quarantine_has_ended(
    world: LakefsWorld, expired: str
) -> None:
    """Also after later runs, to which nothing says that the commit was expired before."""
    before = world.objects()
    report = run(world)
    address = min(before - world.objects())
    for _ in range(2):
        found, went = explained(world, expired), explained(world, address).went
        assert found.expired.run_id == found.fate.run_id == report.run_id
        assert found.fate.state == "quarantined"
        assert "quarantined its data until" in found.fate.text
        assert found.fate.restore_command.endswith(f"gc undo lakefs:repo {report.run_id}")
        assert (went.run_id, went.words) == (report.run_id, "quarantined it")
        world.grow_old(DAY)
        assert run(world).state == "swept"

    world.grow_old(2 * WEEK)
    assert run(world).state == "swept"  # it ends the quarantine
    fate = explained(world, expired).fate
    assert (fate.state, fate.run_id, fate.restore_command) == ("deleted", report.run_id, None)
    words = "quarantined it, and the quarantine has ended: it is deleted"
    assert explained(world, address).went.words == words


def test_an_undone_run_deleted_nothing(world: LakefsWorld, expired: str) -> None:
    assert world.collector().undo(run(world).run_id).state == "undone"
    fate = explained(world, expired).fate
    assert fate is None or fate.state == "undone"
    world.state.branch("back", expired)
    assert not lacks(world, "back")
