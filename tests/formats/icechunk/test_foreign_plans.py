"""A plan that came to a repository with a copy of another one's files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.icechunk import SPEC_VERSIONS, create_repository, listing
from tests.support.icechunk_lake import IcechunkLake


@pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
def test_the_plan_of_the_original_is_not_swept_in_a_copy(tmp_path: Path, spec_version: int) -> None:
    original, copy = IcechunkLake(tmp_path / "original"), IcechunkLake(tmp_path / "copy")
    create_repository(original.path, spec_version)
    original.age()
    planned = original.collector().plan()
    assert planned.state == "planned"
    shutil.copytree(original.path, copy.path)
    before = listing(copy.path)

    report = copy.collector().sweep(planned.run_id)

    assert report.state == "refused"
    assert report.error is not None
    assert report.error["kind"] == "plan_foreign"
    assert listing(copy.path) == before
