"""Gates that close between plan and sweep, and sweeps after one that was broken off."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import Gone
from ebbtide.formats.base import RUNS_PREFIX
from tests.support.copies import contents_of, tombstoned
from tests.support.histories import EXPIRED_ONLY, PlannedWorld, kept_contents
from tests.support.refusals import check_readable, check_refused, nothing_deleted


class Interrupted(BaseException):
    """As from the keyboard."""


def break_off(world: PlannedWorld, at: str) -> None:
    """Sweep until a step has ended."""

    def stop(step: str, event: str) -> None:
        if (step, event) == (at, "end"):
            raise Interrupted

    with pytest.raises(Interrupted):
        world.collector(observer=stop).sweep(world.run_id)


def commit_and_spoil(world: PlannedWorld) -> tuple[Path, bytes]:
    """A new commit whose range is then damaged; the range's file, and its bytes before."""
    before = world.files("_ebbtide/ranges")
    world.save("main", days_ago=0, put=["new"])
    (address,) = world.files("_ebbtide/ranges") - before
    file = world.root / address
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    return file, data


def check_closed(world: PlannedWorld) -> None:
    """Nothing leads back to the expired commit."""
    assert world.history.expired in tombstoned(world)
    with pytest.raises(Gone):
        world.lake.objects.get(world.history.expired, EXPIRED_ONLY)
    with pytest.raises(Gone):
        world.lake.branches.create("back", world.history.expired)


def test_gate_that_closes_behind_the_fence(planned: PlannedWorld) -> None:
    file, data = commit_and_spoil(planned)
    with nothing_deleted(planned):
        report = planned.collector().sweep(planned.run_id)
    check_refused(report, "corrupt_node", file.name, "restore it")
    check_readable(planned)
    # Nothing was let go: a branch may still be made from what the plan would take.
    planned.lake.branches.create("back", planned.history.expired)
    planned.lake.branches.delete("back")
    assert planned.collector().show(planned.run_id).state == "planned"

    file.write_bytes(data)
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    assert report.counts["deleted"] == report.counts["candidate"]
    assert contents_of(planned, "main")["new"] == b"new"
    check_closed(planned)


def test_refusal_does_not_open_what_an_earlier_attempt_let_go(planned: PlannedWorld) -> None:
    break_off(planned, "delete object")
    file, data = commit_and_spoil(planned)
    check_refused(planned.collector().sweep(planned.run_id), "corrupt_node", file.name)
    check_closed(planned)
    assert planned.collector().show(planned.run_id).state == "incomplete"

    file.write_bytes(data)
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    assert report.counts["deleted"] == report.counts["candidate"]
    assert kept_contents(planned, planned.history)[planned.history.head]


def test_refusal_does_not_open_what_another_run_let_go(planned: PlannedWorld) -> None:
    """The first run closed it, the second one deleted it, the first one comes back."""
    break_off(planned, "fence")
    assert planned.collector().run().state == "swept"
    check_closed(planned)
    file, _ = commit_and_spoil(planned)
    check_refused(planned.collector().sweep(planned.run_id), "corrupt_node", file.name)
    check_closed(planned)


def test_half_written_record_is_no_record(planned: PlannedWorld) -> None:
    """A process that is killed as it writes leaves a temporary file behind."""
    break_off(planned, "delete tree")
    records = planned.root / RUNS_PREFIX / planned.run_id / "deleted"
    (part, *_) = records.rglob("*.parquet")
    part.with_name(f"{part.name}#123456").write_bytes(part.read_bytes()[:20])
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    assert report.counts["deleted"] == report.counts["candidate"]


@pytest.mark.parametrize("ref", ["branch", "tag", "hold", "policy"])
def test_plan_whose_candidates_came_back(planned: PlannedWorld, ref: str) -> None:
    """No reason to refuse: what came back is kept and counted, the rest goes."""
    expired = planned.history.expired
    if ref == "branch":
        planned.lake.branches.create("back", expired)
    elif ref == "tag":
        planned.lake.tags.create("back", expired)
    elif ref == "hold":
        planned.lake.retention.hold(expired, "needed")
    else:
        planned.keep(default="20d")
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    assert report.counts["revived"].objects == 1
    settled = report.counts["deleted"].objects + report.counts["revived"].objects
    assert settled == report.counts["candidate"].objects
    check_readable(planned)
