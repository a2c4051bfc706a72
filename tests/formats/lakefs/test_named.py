"""Names of a lakeFS plan's candidates: the paths in the newest expired commit that has them."""

from __future__ import annotations

from ebbtide.audit.candidate_names import expired_commits, names_of_candidates
from ebbtide.formats.file_names import FileName
from tests.formats.lakefs.world import LakefsWorld, old_commit


def test_paths_of_objects_in_expired_commits(world: LakefsWorld) -> None:
    first, _ = old_commit(world, 3)
    collector = world.collector()
    report = collector.plan()
    plan, folder = collector.plan_of(report.run_id), collector.folder_of(report.run_id)
    assert first in [each.commit_id for each in expired_commits(plan, folder)]
    entries = world.state.commits[first].entries
    expected = {each.address: FileName(path, first) for path, each in entries.items()}
    asked = [*expected, "data/never-committed"]
    found = names_of_candidates(world.repository(), plan, folder, asked)
    assert found.complete and found.by_address == expected and len(expected) == 3

    world.bucket.objects = {
        key: each for key, each in world.bucket.objects.items() if "_lakefs/" not in key
    }
    lost = names_of_candidates(world.repository(), plan, folder, asked)
    assert lost.by_address == {} and not lost.complete
