"""The commands `gc runs` and `gc show`: the recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ebbtide.cli.collecting import open_collector
from ebbtide.cli.command import Cli, CollectedArgument, RunArgument, command
from ebbtide.cli.documents import instant
from ebbtide.cli.figures import show_outcome, show_plan
from ebbtide.cli.gc import RunDirOption
from ebbtide.cli.summary import show_summary
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.ids import LATEST, instant_of
from ebbtide.text import age_text, count_text, date_text, size_text

if TYPE_CHECKING:
    from ebbtide.gc.planning.plan import Plan
    from ebbtide.gc.report import RunReport
    from ebbtide.gc.runs import RunFolder

LIMIT: Final = 100
COLUMNS: Final = ("kind", "address", "size_bytes", "last_modified")


def register(app: typer.Typer) -> None:
    """Adds the commands to the group `gc`."""
    command(app, "runs")(list_runs)
    command(app, "show")(show_run)


def list_runs(cli: Cli, repository: CollectedArgument, run_dir: RunDirOption = None) -> None:
    """List the runs, newest first."""
    removed = _removed(cli, repository)
    if removed is None:
        found = open_collector(cli, repository, run_dir=run_dir, reading=True).collector.runs()
    else:
        found = [removed]

    def show() -> None:
        now = datetime.now(UTC)
        cli.output.table(
            ["run", "age", "state", "candidates", "size", "deleted", "quarantine"],
            [_row(report, now) for report in found],
            right=["age", "candidates", "size", "deleted", "quarantine"],
            none="no runs yet: 'ebbtide gc plan' makes a plan and deletes nothing",
        )

    cli.output.answer({"runs": [report.to_json() for report in found]}, show)


def _row(report: RunReport, now: datetime) -> list[str]:
    started_at = instant_of(report.run_id)
    document = report.to_json()
    return [
        report.run_id,
        "" if started_at is None else age_text(now - started_at),
        report.state,
        count_text(document["candidate_count"]),
        size_text(document["candidate_bytes"]),
        count_text(document["deleted_count"]),
        size_text(report.quarantine["bytes"]) if report.quarantine else "",
    ]


def show_run(
    cli: Cli,
    repository: CollectedArgument,
    run_id: RunArgument,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="List the candidates of the plan.")
    ] = False,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most candidates to list.")
    ] = LIMIT,
    run_dir: RunDirOption = None,
) -> None:
    """Show the plan and the outcome of a run."""
    removed = _removed(cli, repository)
    if removed is not None and run_id in (LATEST, removed.run_id):
        report, plan, folder = removed, None, None
    else:
        collector = open_collector(cli, repository, run_dir=run_dir, reading=True).collector
        run_id = collector.find_run(run_id)
        report = collector.show(run_id)
        # A run that was refused before it had a plan has no figures.
        plan = collector.plan_of(run_id) if report.has_plan else None
        folder = collector.folder_of(run_id)
    listed = list(islice(_candidates(folder, plan), limit)) if candidates else None
    document = report.to_json()
    if listed is not None:
        document["candidates"] = [
            row | {"last_modified": instant(row["last_modified"])} for row in listed
        ]

    def show() -> None:
        if plan is not None:
            show_plan(cli.output, plan)
            cli.output.line()
        if report.state in ("swept", "incomplete", "undone") and report.has_outcomes:
            show_outcome(cli.output, report)
            cli.output.line()
        if listed is not None:
            show_candidates(cli, listed)
            cli.output.line()
        # The plan has told its own warnings.
        for warning in report.warnings if plan is None else report.incidents:
            cli.output.warn(warning)
        show_summary(cli, report)

    cli.output.answer(document, show)


def _removed(cli: Cli, repository: str) -> RunReport | None:
    """Returns the run that deleted a gone repository as a whole, or None. Only the record of this
    run is left of the repository."""
    if is_elsewhere(repository):
        return None
    removal = cli.store.catalog.find_removed(repository)
    if removal is None or removal.finished_at is None:
        return None

    from ebbtide.gc.report import RunReport

    return RunReport.from_json(removal.report)


def _candidates(folder: RunFolder | None, plan: Plan | None) -> Iterator[dict[str, Any]]:
    """Yields the candidates of a plan, part by part, as rows by column name."""
    from ebbtide.gc.parts import read_part

    if folder is None or plan is None:
        return
    for part in plan.candidates:
        yield from read_part(folder, part.name, part.checksum).select(COLUMNS).to_pylist()


def show_candidates(cli: Cli, listed: list[dict[str, Any]]) -> None:
    """Prints candidates as a table."""
    cli.output.table(
        ["kind", "size", "modified", "address"],
        [
            [
                row["kind"],
                size_text(row["size_bytes"]),
                date_text(row["last_modified"]),
                row["address"],
            ]
            for row in listed
        ],
        right=["size"],
        none="no candidates",
    )
