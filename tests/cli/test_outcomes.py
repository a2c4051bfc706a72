"""Commands of the collector with every outcome that a report can have: each is told as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product
from typing import Any, Final, get_args

import pytest

from ebbtide.gc.collector import Collector
from ebbtide.gc.deletes import LOCKED, OUTCOMES
from ebbtide.gc.parts import Count
from ebbtide.gc.report import COUNTED, EXIT_CODES, RunReport, RunState, error_json
from tests.cli.conftest import Ebbtide

STATES: Final[tuple[RunState, ...]] = get_args(RunState)
COMMANDS: Final = ("plan", "run", "sweep", "undo", "purge", "show", "runs")
ENDS: Final = (*OUTCOMES, LOCKED)
PLANNED: Final = {name: Count(3, 30) for name in COUNTED if name not in ENDS}
SWEPT: Final = PLANNED | {name: Count(1, 10) for name in ENDS}
ASIDE: Final = {"state": "held", "until": "2031-01-01T00:00:00+00:00", "objects": 1, "bytes": 10}
BACK: Final = {"back_objects": 1, "back_bytes": 10, "reopened_commits": 1}
LEFT_OUT: Final = {"closed_commits": 1, "purged_objects": 1, "lost_objects": 1}
AT_RISK: Final = {"at_risk_objects": 1, "sweepers": "process 1 on a host"}
LASTING: Final = {"readable_until": "the log keeps them"}
UNDONE: Final = ASIDE | BACK | LEFT_OUT | AT_RISK | LASTING


def reports(run: RunReport) -> Iterator[RunReport]:
    """Reports in every state: with a plan or not, outcomes or not, and by turns with nothing aside,
    something, and something that came back."""
    asides = cycle((None, ASIDE, UNDONE))
    for state, counts in product(STATES, ({}, PLANNED, SWEPT)):
        if state in ("swept", "undone") and counts is not SWEPT:
            continue
        aside = UNDONE if state == "undone" else next(asides)
        failed = state in ("refused", "incomplete")
        yield replace(
            run,
            state=state,
            counts=counts,
            quarantine=aside,
            error=error_json("lease_lost", "another run took over: sweep again")
            if failed
            else None,
        )


def may_answer(command: str, report: RunReport) -> bool:
    """Whether the command can end with such a report. An undo that is not refused says what came
    back; with --under the run stays as it was, which is swept."""
    if command != "undo" or report.state == "refused":
        return True
    return report.state in ("swept", "undone") and report.quarantine == UNDONE


@pytest.mark.parametrize("command", COMMANDS)
def test_each_is_told(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    lake("retention set lake --default 30d")
    run_id = lake.json("gc plan lake")["run_id"]
    plan = Collector.plan_of
    known = RunReport.from_json(lake.json("gc show lake", run_id))
    words = ["gc", command, "lake"]
    words += [run_id] if command in ("sweep", "undo", "purge", "show") else []
    words += ["--yes"] if command in ("run", "sweep", "purge") else []
    told: list[str] = []
    for report in reports(known):

        def answer(*_: Any, report: RunReport = report, **__: Any) -> RunReport:
            return report

        if not may_answer(command, report):
            continue
        for name in ("plan", "run", "sweep", "undo", "purge", "show"):
            monkeypatch.setattr(Collector, name, answer)
        monkeypatch.setattr(Collector, "runs", lambda *_, report=report: [report])
        monkeypatch.setattr(Collector, "plan_of", plan)
        reading = command in ("show", "runs")
        code = 0 if reading else int(EXIT_CODES[report.state])
        for form in ((), ("--json",)):
            result = lake(*words, *form, code=code)
            assert "defect" not in result.out + result.err, report
            if report.state == "refused" and command in ("undo", "purge"):
                assert "restored" not in result.out
                assert "no files in quarantine" not in result.out
            if report.error is not None and not form and not reading:
                assert report.error["message"] in result.err
            told.append(result.out)
    assert len(set(told)) > len(STATES)
