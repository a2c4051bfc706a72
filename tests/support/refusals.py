"""What every refusal of the collector has to show: a reason, a way on, and nothing deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.errors import ExitCode
from ebbtide.gc.report import EXIT_CODES, RunReport
from tests.support.copies import listing, tombstoned
from tests.support.histories import EXPIRED_ONLY, PlannedWorld


def attempt(world: PlannedWorld, action: str) -> RunReport:
    collector = world.collector()
    return collector.plan() if action == "plan" else collector.sweep(world.run_id)


def check_refused(report: RunReport, kind: str, *mentions: str) -> None:
    assert report.state == "refused"
    assert report.error is not None
    assert report.error["kind"] == kind, report.error
    for mention in mentions:
        assert mention in report.error["message"]
    assert EXIT_CODES[report.state] == ExitCode.REFUSED
    assert report.to_json()["deleted_count"] == 0


@contextmanager
def nothing_deleted(world: PlannedWorld) -> Iterator[None]:
    """In the block nothing goes, and behind it no commit is closed."""
    before = listing(world.root)
    yield
    assert listing(world.root) == before
    assert not tombstoned(world)


def check_both_refused(world: PlannedWorld, kind: str, *mentions: str) -> None:
    """Neither a new plan nor a sweep of the one that is there goes on, and nothing is deleted."""
    for action in ("plan", "sweep"):
        with nothing_deleted(world):
            report = attempt(world, action)
        check_refused(report, kind, *mentions)


def check_readable(world: PlannedWorld) -> None:
    """What would go is still there for its readers."""
    assert world.lake.objects.get(world.history.expired, EXPIRED_ONLY) == EXPIRED_ONLY.encode()
