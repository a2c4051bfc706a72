"""The command `gc verify`: checks a run's plan before its sweep, or its record afterwards."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from ebbtide.cli.collecting import open_collector
from ebbtide.cli.command import Cli, CollectedArgument, RunArgument, command
from ebbtide.cli.gc import QuietOption, RunDirOption
from ebbtide.cli.interrupting import command_line
from ebbtide.cli.summary import place_of, show_block
from ebbtide.errors import ExitCode
from ebbtide.text import count_text, date_text, one_line, size_text

if TYPE_CHECKING:
    from ebbtide.audit.findings import Finding, Verification


def register(app: typer.Typer) -> None:
    """Adds the command to the group `gc`."""
    command(app, "verify")(verify_run)


def verify_run(
    cli: Cli,
    repository: CollectedArgument,
    run_id: RunArgument,
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
    cli.output.answer(found.to_json(), lambda: _show(cli, found))
    if not found.verified:
        count = count_text(found.difference_count, "difference")
        cli.output.error(f"run {run_id} of {found.repository} does not pass: {count}")
        raise typer.Exit(ExitCode.REFUSED)


def _show(cli: Cli, found: Verification) -> None:
    from ebbtide.audit.findings import DIFFERENCES, NOTES

    for sort, words in [*DIFFERENCES.items(), *NOTES.items()]:
        shown = [each for each in found.shown if each.sort == sort]
        if not shown:
            continue
        lead = "note: " if sort in NOTES else ""
        cli.output.line(f"{lead}{sort}: {words}")
        if any(each.address or each.commit_id for each in shown):
            rows = [_row(each) for each in shown]
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
    looked = ", ".join(f"{count_text(count)} {name}" for name, count in found.checked.items())
    result = "passes" if found.verified else count_text(found.difference_count, "difference")
    named = (found.repository, found.run_id)
    pairs = [("run", f"{found.run_id} {result}"), *place_of(cli, found.repository)]
    pairs += [("when", f"{date_text(datetime.now(UTC))} UTC"), ("checked", looked)]
    notes = sum(count for sort, count in found.counts.items() if sort in NOTES)
    if notes:
        pairs.append(("notes", count_text(notes)))
    show_block(cli, [*pairs, ("show", command_line(cli.context, ("gc", "show"), named))])


def _row(found: Finding) -> list[str]:
    return [
        found.address or found.commit_id or "",
        found.kind or "",
        "" if found.size_bytes is None else size_text(found.size_bytes),
        one_line(found.text),
    ]
