"""Refs and commits that appear while a plan is carried out."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zarr

from ebbtide.gc.steps import Event
from tests.support.icechunk import (
    SPEC_VERSIONS,
    build_random,
    collect_with_icechunk,
    contents,
    create_repository,
    listing,
    open_repository,
    read_snapshot,
)
from tests.support.icechunk_lake import IcechunkLake, candidates
from tests.support.randomized import randomized

both = pytest.mark.parametrize("spec_version", SPEC_VERSIONS)


@pytest.fixture
def doomed(tmp_path: Path, spec_version: int) -> tuple[IcechunkLake, str, dict[str, str]]:
    """A repository, a snapshot that a rewind let go, and what it reads as."""
    lake = IcechunkLake(tmp_path / "lake")
    repository = create_repository(lake.path, spec_version)
    for value in range(1, 5):
        session = repository.writable_session("main")
        array = zarr.open_group(session.store, mode="a").require_array(
            "values", shape=(16,), chunks=(4,), dtype="float64", compressors=None
        )
        array[...] = value
        head = session.commit(f"value {value}")
    read = read_snapshot(repository, head)
    repository.reset_branch("main", list(repository.ancestry(branch="main"))[1].id)
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
    report = lake.collector(observer=tag).plan()
    assert report.state == "planned", report.error

    swept = lake.collector(observer=tag).sweep(report.run_id)

    assert tag.action is None, "the step never came"
    assert swept.state in ("swept", "incomplete"), swept.error
    seen = contents(lake.path)
    assert seen.snapshots[head] == read
    assert (
        lake.collector().sweep(report.run_id).state == "swept"
        if swept.state == "incomplete"
        else True
    )
    assert contents(lake.path) == seen
    assert not collect_with_icechunk(lake.path).deleted - candidates(report).keys()


@both
def test_every_run_is_clean(doomed: tuple[IcechunkLake, str, dict[str, str]]) -> None:
    """Also one that is to continue from an earlier run."""
    lake, _, _ = doomed
    assert lake.collect().state == "swept"
    again = lake.collect(mode="incremental")
    assert (again.state, again.mode) == ("swept", "clean")


@both
def test_a_branch_made_between_batches_stops_the_sweep(
    doomed: tuple[IcechunkLake, str, dict[str, str]], spec_version: int
) -> None:
    """In version 1. In version 2 Icechunk cannot make one any more."""
    lake, head, _ = doomed
    report = lake.collector().plan()
    failed: list[Exception] = []

    def make_branch() -> None:
        try:
            open_repository(lake.path).create_branch("late", head)
        except Exception as error:  # noqa: BLE001 - whatever Icechunk says
            failed.append(error)

    late = At("forget", "end", make_branch)
    swept = lake.collector(observer=late).sweep(report.run_id)

    if spec_version == 2:
        assert failed
        assert swept.state == "swept"
    else:
        assert not failed
        assert swept.state == "incomplete"
        assert swept.error is not None
        assert "branch late" in swept.error["message"]
        assert f"snapshots/{head}" in listing(lake.path)
        assert lake.collector().sweep(report.run_id).state == "swept"
    contents(lake.path)


@both
@randomized("work between plan and sweep")
def test_random_work_between_plan_and_sweep(tmp_path: Path, seed: int, spec_version: int) -> None:
    """Whatever Icechunk does in between, all that refs reach reads afterwards, and as before."""
    choices = random.Random(seed)
    lake = IcechunkLake(tmp_path / "lake")
    build_random(lake.path, seed, spec_version)
    everything = all_snapshots(lake.path)
    lake.age()
    report = lake.collector().plan()
    for number in range(choices.randint(1, 4)):
        work(lake.path, choices, number, everything)
    before = contents(lake.path)

    swept = lake.collector().sweep(report.run_id)

    assert swept.state == "swept", swept.error
    assert contents(lake.path) == before


def all_snapshots(path: Path) -> list[str]:
    """The ids of all snapshots whose files are there."""
    return sorted(each.name for each in (path / "snapshots").iterdir())


def work(path: Path, choices: random.Random, number: int, known: list[str]) -> None:
    """One operation, often on a snapshot that nothing reaches."""
    repository = open_repository(path)
    target = choices.choice(known)
    kind = choices.choice(["tag", "branch", "commit", "reset", "delete"])
    others = sorted(repository.list_branches() - {"main"})
    try:
        if kind == "tag":
            repository.create_tag(f"late{number}", target)
        elif kind == "branch":
            repository.create_branch(f"late{number}", target)
        elif kind == "reset":
            repository.reset_branch("main", target)
        elif kind == "delete" and others:
            repository.delete_branch(choices.choice(others))
        else:
            session = repository.writable_session("main")
            zarr.open_group(session.store, mode="a").attrs["late"] = number
            session.commit(f"late {number}")
    except Exception as error:  # noqa: BLE001 - a snapshot that Icechunk does not know
        assert "not found" in str(error).lower() or "exist" in str(error).lower(), error
