"""`gc undo` and `gc purge`: what a sweep moved aside comes back, or goes for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.asking import confirm, require_answerable
from ebbtide.cli.collecting import open_collector
from ebbtide.cli.command import Cli, CollectedArgument, RunArgument, YesOption, command
from ebbtide.cli.gc import MasterOption, RunDirOption, finish
from ebbtide.cli.interrupting import purge_told, undo_told
from ebbtide.cli.summary import show_summary
from ebbtide.cli.text import count_text, size_text

if TYPE_CHECKING:
    from ebbtide.gc.report import RunReport


def register(app: typer.Typer) -> None:
    """Add the commands to the group `gc`."""
    command(app, "undo")(undo)
    command(app, "purge")(purge)


def undo(
    cli: Cli,
    repository: CollectedArgument,
    run_id: RunArgument,
    under: Annotated[
        str,
        typer.Option(
            "--under",
            metavar="ADDRESS",
            help="Only the files whose addresses begin so; commits stay closed.",
        ),
    ] = "",
    sweeps_ended: Annotated[
        bool,
        typer.Option(
            "--sweeps-ended",
            help="No process of any sweep is left, suspended ones among them: bring back what "
            "one was about to take, too.",
        ),
    ] = False,
    run_dir: RunDirOption = None,
    master: MasterOption = None,
) -> None:
    """Bring back what a sweep with --quarantine moved aside, and open its commits again.

    What is back no run takes for 7 days. The run cannot be swept again. An undo that was
    interrupted is asked for again. Files that a sweep was about to take when it was last heard of
    stay aside, since it may be suspended and go on.
    """
    run = open_collector(cli, repository, run_dir=run_dir, master=master)
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
    back = count_text(found["back_objects"], f"file ({size}) is back", f"files ({size}) are back")
    cli.output.line(back)
    if found["reopened_commits"] or report.state == "undone":
        cli.output.line(f"{count_text(found['reopened_commits'], 'commit')} can be read again")
    if report.state != "undone":
        stays = "stays" if found["objects"] == 1 else "stay"
        cli.output.line(f"{_left(report)} {stays} aside")
    if found["at_risk_objects"]:
        count = count_text(
            found["at_risk_objects"],
            "file stays as it is, and commits that need it closed: a sweep was about to take it",
            "files stay as they are, and commits that need them closed: a sweep was about to take "
            "them",
        )
        cli.output.warn(
            f"{count} when it was last heard of ({found['sweepers']}), and goes on if it was only "
            "suspended. Once that process has ended for certain, undo the run again with "
            "--sweeps-ended"
        )
    if found["lost_objects"]:
        count = count_text(
            found["lost_objects"],
            "file that the run moved aside is not there any more",
            "files that the run moved aside are not there any more",
        )
        cli.output.warn(count)
    if found["closed_commits"]:
        count = count_text(
            found["closed_commits"],
            "commit stays closed: not all that it needs",
            "commits stay closed: not all that they need",
        )
        cli.output.warn(f"{count} is there, or safe")
    if found["purged_objects"]:
        count = count_text(
            found["purged_objects"],
            "file did not come back: an administrator had it purged",
            "files did not come back: an administrator had them purged",
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
    """Delete for good what a sweep with --quarantine moved aside."""
    require_answerable(yes=yes)
    run = open_collector(cli, repository, run_dir=run_dir, master=master)
    if not yes:
        question = f"delete {_left(run.collector.show(run_id))} of run {run_id} for good?"
        if not confirm(question, yes=yes):
            cli.declined("nothing was deleted")
            return
    cli.when_interrupted(lambda: purge_told(run.progress))
    with run.progress:
        report = run.collector.purge(run_id)

    def show() -> None:
        if report.state != "refused":
            cli.output.line(f"run {run_id} has nothing aside any more")
            cli.output.line()
        show_summary(cli, report)

    finish(cli, report, show)


def _left(report: RunReport) -> str:
    found = report.quarantine or {"objects": 0, "bytes": 0}
    return f"{count_text(found['objects'], 'file')} ({size_text(found['bytes'])})"
