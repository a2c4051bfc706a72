"""The commands on recorded runs: `gc runs`, `gc show`, `gc undo`, `gc purge`, `gc verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ebbtide.cli.collectors import Run, open_collector
from ebbtide.cli.command import (
    Cli,
    CollectedArgument,
    RunArgument,
    YesOption,
    command,
    command_line,
)
from ebbtide.cli.figures import (
    made_by,
    place_of,
    plan_money,
    prices_of,
    show_block,
    show_outcome,
    show_plan,
    show_summary,
)
from ebbtide.cli.gc import MasterOption, QuietOption, RunDirOption, finish
from ebbtide.cli.output import confirm, require_answerable
from ebbtide.cli.progress import purge_told, undo_told
from ebbtide.documents import instant
from ebbtide.errors import ExitCode
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.gc import FOUND
from ebbtide.ids import LATEST, instant_of
from ebbtide.text import age_text, count_text, date_text, one_line, size_text

if TYPE_CHECKING:
    from ebbtide.audit.findings import Finding, Verification
    from ebbtide.gc.plan import Plan
    from ebbtide.gc.report import RunReport
    from ebbtide.gc.runs import RunFolder


LIMIT: Final = 100
COLUMNS: Final = ("kind", "address", "size_bytes", "last_modified")


def register(app: typer.Typer) -> None:
    """Adds the commands to the group `gc`."""
    command(app, "runs")(list_runs)
    command(app, "show")(show_run)
    command(app, "undo")(undo)
    command(app, "purge")(purge)
    command(app, "verify")(verify_run)


def list_runs(cli: Cli, repository: CollectedArgument, run_dir: RunDirOption = None) -> None:
    """List the runs, newest first."""
    removed = _removed(cli, repository)
    if removed is None:
        found = open_collector(cli, repository, run_dir=run_dir, reading=True).collector.runs()
    else:
        found = [removed]

    def show() -> None:
        now = datetime.now(UTC)
        figures = [FOUND["candidate"], "size", "deleted", "quarantine"]
        cli.output.table(
            ["run", "age", "state", *figures],
            [_row(report, now) for report in found],
            right=["age", *figures],
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
    run_id: RunArgument = LATEST,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="List the candidates of the plan.")
    ] = False,
    addresses: Annotated[
        bool,
        typer.Option("--addresses", help="List candidates with their names and addresses."),
    ] = False,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most candidates to list.")
    ] = LIMIT,
    run_dir: RunDirOption = None,
) -> None:
    """Show the plan and the outcome of a run.

    Candidates are listed by their names: the path in a commit, the array and key of a chunk, the
    table and partition of a file, or the message of a snapshot. A candidate without a name, such as
    a file that was never committed, is listed by its address.
    """
    removed = _removed(cli, repository)
    if removed is not None and run_id in (LATEST, removed.run_id):
        report, plan, listed = removed, None, list[dict[str, Any]]()
    else:
        run = open_collector(cli, repository, run_dir=run_dir, reading=True)
        collector = run.collector
        run_id = collector.find_run(run_id)
        report = collector.show(run_id)
        # A run that was refused before it had a plan has no figures.
        plan = collector.plan_of(run_id) if report.has_plan else None
        is_listed = candidates or addresses
        listed = _candidates(run, plan, collector.folder_of(run_id), limit) if is_listed else []
    document, prices = report.to_json(), prices_of(cli)
    if plan is not None and prices is not None:
        document["money"] = plan_money(plan, prices)
    if candidates or addresses:
        document["candidates"] = [
            row | {"last_modified": instant(row["last_modified"])} for row in listed
        ]

    def show() -> None:
        if plan is not None:
            show_plan(cli.output, plan, prices)
            cli.output.line()
        if report.state in ("swept", "incomplete", "undone") and report.has_outcomes:
            show_outcome(cli.output, report)
            cli.output.line()
        if candidates or addresses:
            total = 0 if plan is None else sum(part.rows for part in plan.candidates)
            show_candidates(cli, listed, total=total, addresses=addresses)
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


def _candidates(run: Run, plan: Plan | None, folder: RunFolder, limit: int) -> list[dict[str, Any]]:
    """Returns the first candidates of a plan as rows by column name, with their names."""
    from ebbtide.audit.candidate_names import names_of_candidates
    from ebbtide.gc.parts import read_part

    if plan is None:
        return []
    read = (read_part(folder, part.name, part.checksum) for part in plan.candidates)
    rows = (row for table in read for row in table.select(COLUMNS).to_pylist())
    listed = list(islice(rows, limit))
    found = names_of_candidates(run.form, plan, folder, [row["address"] for row in listed])
    for row in listed:
        named = found.by_address.get(row["address"])
        row |= {"name": named and named.name, "commit_id": named and named.commit_id}
    return listed


def show_candidates(
    cli: Cli, listed: Sequence[Mapping[str, Any]], *, total: int, addresses: bool = True
) -> None:
    """Prints candidates as a table, and how many of the `total` are not listed. A candidate without
    a name is shown by its address."""
    names = [row.get("name") for row in listed]
    columns: dict[str, list[str]] = {
        "kind": [row["kind"] for row in listed],
        "size": [size_text(row["size_bytes"]) for row in listed],
        "modified": [date_text(row["last_modified"]) for row in listed],
    }
    if any("deletable_at" in row for row in listed):
        columns["deletable from"] = [date_text(row["deletable_at"]) for row in listed]
    if addresses or not any(names):
        columns["address"] = [row["address"] for row in listed]
    if any(names):
        columns["name"] = [
            name or ("" if addresses else row["address"])
            for row, name in zip(listed, names, strict=True)
        ]
    cli.output.table(
        list(columns),
        [list(row) for row in zip(*columns.values(), strict=True)],
        right=["size"],
        none="no candidates",
    )
    if total > len(listed):
        cli.output.line(f"… and {total - len(listed):,} more: --limit N lists more")


def undo(
    cli: Cli,
    repository: CollectedArgument,
    run_id: RunArgument,
    under: Annotated[
        str,
        typer.Option(
            "--under",
            metavar="ADDRESS",
            help="Restore only files whose addresses begin with this; commits stay closed.",
        ),
    ] = "",
    sweeps_ended: Annotated[
        bool,
        typer.Option(
            "--sweeps-ended",
            help="No process of any sweep exists any more, not even a suspended one: also restore "
            "the files that a sweep was about to delete.",
        ),
    ] = False,
    run_dir: RunDirOption = None,
    master: MasterOption = None,
) -> None:
    """Undo a sweep: restore its files from quarantine, and open its commits again.

    No run deletes the restored files for 7 days. When all are restored, the run cannot be swept
    again. If an undo was interrupted, run it again. If a sweep began a batch and did not record its
    end, the files of this batch stay in quarantine: a suspended sweep could still delete them.
    """
    run = open_collector(cli, repository, run_dir=run_dir, master=master)
    run_id = run.collector.find_run(run_id)
    cli.when_interrupted(lambda: undo_told(run.progress))
    with run.progress:
        report = run.collector.undo(run_id, under=under, sweeps_ended=sweeps_ended)

    def show() -> None:
        if report.state != "refused":
            _tell_undone(cli, report)
            cli.output.line()
        show_summary(cli, report)

    finish(cli, report, show)


def _tell_undone(cli: Cli, report: RunReport) -> None:
    found = report.quarantine or {}
    size = size_text(found["back_bytes"])
    restored = count_text(
        found["back_objects"], f"file ({size}) is restored", f"files ({size}) are restored"
    )
    cli.output.line(restored)
    if found["reopened_commits"] or report.state == "undone":
        cli.output.line(f"{count_text(found['reopened_commits'], 'commit')} can be read again")
        if found.get("readable_until"):  # reports of older programs lack it
            cli.output.line(found["readable_until"])
    if report.state != "undone":
        stays = "stays" if found["objects"] == 1 else "stay"
        cli.output.line(f"{_left(report)} {stays} in quarantine")
    if found["at_risk_objects"]:
        count = count_text(
            found["at_risk_objects"],
            "file was not restored, and commits that need it stay closed: a sweep had begun to "
            "delete it",
            "files were not restored, and commits that need them stay closed: a sweep had begun to "
            "delete them",
        )
        cli.output.warn(
            f"{count} ({found['sweepers']}), and continues if it is only suspended. When you are "
            "certain that its process has ended, undo the run again with --sweeps-ended"
        )
    if found["lost_objects"]:
        count = count_text(
            found["lost_objects"],
            "file that the run quarantined does not exist any more",
            "files that the run quarantined do not exist any more",
        )
        cli.output.warn(count)
    if found["closed_commits"]:
        count = count_text(
            found["closed_commits"],
            "commit stays closed: files that it needs",
            "commits stay closed: files that they need",
        )
        cli.output.warn(f"{count} are missing, or can still be deleted by a sweep")
    if found["purged_objects"]:
        count = count_text(
            found["purged_objects"],
            "file was not restored: an administrator purged it",
            "files were not restored: an administrator purged them",
        )
        cli.output.warn(count)


def purge(
    cli: Cli,
    repository: CollectedArgument,
    run_id: RunArgument,
    run_dir: RunDirOption = None,
    master: MasterOption = None,
    yes: YesOption = False,
) -> None:
    """Delete a sweep's files in quarantine before their time there ends."""
    run = open_collector(cli, repository, run_dir=run_dir, master=master)
    run_id = run.collector.find_run(run_id)
    require_answerable(yes=yes)
    if not yes:
        question = f"delete {_left(run.collector.show_held(run_id))} of run {run_id} for good?"
        if not confirm(question, yes=yes):
            cli.declined("nothing was deleted")
            return
    cli.when_interrupted(lambda: purge_told(run.progress))
    with run.progress:
        report = run.collector.purge(run_id)

    def show() -> None:
        for incident in report.incidents:
            cli.output.warn(incident)
        if (report.quarantine or {}).get("state") == "purged":
            cli.output.line(f"run {run_id} has no files in quarantine any more")
            cli.output.line()
        show_summary(cli, report)

    finish(cli, report, show)


def _left(report: RunReport) -> str:
    found = report.quarantine or {"objects": 0, "bytes": 0}
    return f"{count_text(found['objects'], 'file')} ({size_text(found['bytes'])})"


def verify_run(
    cli: Cli,
    repository: CollectedArgument,
    run_id: RunArgument = LATEST,
    run_dir: RunDirOption = None,
    quiet: QuietOption = False,
) -> None:
    """Check a plan, or the record of its sweep, with an independent reader. Changes nothing.

    Before the sweep, it checks that no candidate is needed, protected or too young. After the
    sweep, it checks that no deleted file is needed, and that the record is complete. If anything
    differs, the exit code is 3.
    """
    from ebbtide.audit.verify import verify

    run = open_collector(cli, repository, run_dir=run_dir, quiet=quiet, mode="auto", reading=True)
    run_id = run.collector.find_run(run_id)
    cli.when_interrupted(lambda: "Interrupted before its end: nothing was changed")
    with run.progress:
        found = verify(run.collector, run_id)
    cli.output.answer(found.to_json(), lambda: _show_verification(cli, found))
    if not found.verified:
        count = count_text(found.difference_count, "difference")
        cli.output.error(f"run {run_id} of {found.repository} does not pass: {count}")
        raise typer.Exit(ExitCode.REFUSED)


def _show_verification(cli: Cli, found: Verification) -> None:
    from ebbtide.audit.findings import DIFFERENCES, NOTES

    for sort, words in [*DIFFERENCES.items(), *NOTES.items()]:
        shown = [each for each in found.shown if each.sort == sort]
        if not shown:
            continue
        lead = "note: " if sort in NOTES else ""
        cli.output.line(f"{lead}{sort}: {words}")
        if any(each.address or each.commit_id for each in shown):
            rows = [_finding_row(each) for each in shown]
            cli.output.table(["what", "kind", "size", "why"], rows, right=["size"])
        else:
            for each in shown:
                cli.output.line(one_line(each.text))
        more = found.counts[sort] - len(shown)
        if more:
            cli.output.line(f"and {count_text(more)} more")
        cli.output.line()
    if found.path is not None:
        cli.output.line(f"full list: {found.path}")
    if found.unwritten is not None:
        cli.output.warn(f"the full list could not be written: {found.unwritten}")
    looked = ", ".join(
        count_text(count, name.removesuffix("s"), name) for name, count in found.checked.items()
    )
    result = "passes" if found.verified else count_text(found.difference_count, "difference")
    named = (found.repository, found.run_id)
    when = f"{date_text(datetime.now(UTC))} UTC"
    pairs = [
        ("run", f"{found.run_id} {result}, {when}, by {made_by()}"),
        ("repository", place_of(cli, found.repository)),
        ("checked", looked),
    ]
    notes = sum(count for sort, count in found.counts.items() if sort in NOTES)
    if notes:
        pairs.append(("notes", count_text(notes)))
    show_block(cli, [*pairs, ("show", command_line(cli.context, ("gc", "show"), named))])


def _finding_row(found: Finding) -> list[str]:
    return [
        found.address or found.commit_id or "",
        found.kind or "",
        "" if found.size_bytes is None else size_text(found.size_bytes),
        one_line(found.text),
    ]
