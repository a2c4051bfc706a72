"""Refs and commits that appear while a plan is carried out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from icechunk import IcechunkError

from ebbtide.formats.icechunk.ids import ROOT_ID
from ebbtide.gc.steps import Event
from tests.formats.icechunk.operations import commit_array
from tests.support.icechunk import (
    SPEC_VERSIONS,
    collect_with_icechunk,
    contents,
    create_repository,
    listing,
    open_repository,
    read_snapshot,
)
from tests.support.icechunk_lake import IcechunkLake, candidates

both = pytest.mark.parametrize("spec_version", SPEC_VERSIONS)


@pytest.fixture
def doomed(tmp_path: Path, spec_version: int) -> tuple[IcechunkLake, str, dict[str, str]]:
    """A repository, a snapshot that a rewind let go, and what it reads as."""
    lake = IcechunkLake(tmp_path / "lake")
    repository = create_repository(lake.path, spec_version)
    *_, below, head = [commit_array(repository, "values", value) for value in range(1, 5)]
    read = read_snapshot(repository, head)
    repository.reset_branch("main", below)
    lake.age()
    return lake, head, read


class At:
    """Does something when a step of a run starts or ends, once."""

    def __init__(self, step: str, event: Event, action: Callable[[], None]) -> None:
        self.when = (step, event)
        self.action: Callable[[], None] | None = action

    def __call__(self, step: str, event: Event) -> None:
        if (step, event) == self.when and self.action is not None:
            action, self.action = self.action, None
            action()


STEPS = [("list", "start"), ("read", "start"), ("read", "end"), ("subtract", "start"),
         ("subtract", "end")]  # fmt: skip
SWEEP_STEPS = [("check", "start"), ("fence", "start"), ("fence", "end"), ("recheck", "start"),
               ("recheck", "end"), ("forget", "start")]  # fmt: skip


@pytest.mark.drawn("tags between steps")
@both
@pytest.mark.parametrize("when", [*STEPS, *SWEEP_STEPS], ids=lambda when: " ".join(when))
def test_a_tag_on_what_goes_brings_it_back(
    doomed: tuple[IcechunkLake, str, dict[str, str]], when: tuple[str, Event]
) -> None:
    lake, head, read = doomed
    tag = At(*when, lambda: open_repository(lake.path).create_tag("back", head))
    report = lake.planned(observer=tag)
    swept = lake.collector(observer=tag).sweep(report.run_id)
    assert tag.action is None, "the step never came"
    assert swept.state in ("swept", "incomplete"), swept.error
    seen = contents(lake.path)
    assert seen.snapshots[head] == read
    if swept.state == "incomplete":
        assert lake.collector().sweep(report.run_id).state == "swept"
    assert contents(lake.path) == seen
    assert not collect_with_icechunk(lake.path).deleted - candidates(report).keys()


@both
def test_every_run_is_clean(doomed: tuple[IcechunkLake, str, dict[str, str]]) -> None:
    """Also one that is to continue from an earlier run."""
    lake, _, _ = doomed
    lake.swept()
    again = lake.collect(mode="incremental")
    assert (again.state, again.mode) == ("swept", "clean")


@both
def test_an_empty_repository_has_no_candidate(tmp_path: Path, spec_version: int) -> None:
    lake = IcechunkLake(tmp_path / "lake")
    create_repository(lake.path, spec_version)
    lake.age()
    before = listing(lake.path)
    report = lake.collector().plan()
    assert (report.state, candidates(report)) == ("planned", {}), report.error
    assert lake.collector().sweep(report.run_id).state == "swept"
    assert listing(lake.path).keys() >= before.keys()
    assert contents(lake.path).snapshots.keys() == {ROOT_ID}
    commit_array(open_repository(lake.path), "values", 1)


@both
def test_a_branch_made_between_batches_stops_the_sweep(
    doomed: tuple[IcechunkLake, str, dict[str, str]], spec_version: int
) -> None:
    """In version 1. In version 2 Icechunk cannot make one any more."""
    lake, head, _ = doomed
    report = lake.collector().plan()
    failed: list[IcechunkError] = []

    def make_branch() -> None:
        try:
            open_repository(lake.path).create_branch("late", head)
        except IcechunkError as error:
            failed.append(error)

    late = At("forget", "end", make_branch)
    swept = lake.collector(observer=late).sweep(report.run_id)
    assert bool(failed) == (spec_version == 2)
    if spec_version == 2:
        assert swept.state == "swept"
    else:
        assert swept.state == "incomplete"
        assert "branch late" in str(swept.error)
        assert f"snapshots/{head}" in listing(lake.path)
        assert lake.collector().sweep(report.run_id).state == "swept"
    contents(lake.path)
