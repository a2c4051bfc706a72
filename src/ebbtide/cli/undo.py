"""The commands `gc undo` and `gc purge`: restore or delete the files in quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.asking import confirm, require_answerable
from ebbtide.cli.collecting import open_collector
from ebbtide.cli.command import Cli, CollectedArgument, RunArgument, YesOption, command
from ebbtide.cli.gc import MasterOption, RunDirOption, finish
from ebbtide.cli.interrupting import purge_told, undo_told
from ebbtide.cli.summary import show_summary
from ebbtide.text import count_text, size_text

if TYPE_CHECKING:
    from ebbtide.gc.report import RunReport


def register(app: typer.Typer) -> None:
    """Adds the commands to the group `gc`."""
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
    require_answerable(yes=yes)
    run = open_collector(cli, repository, run_dir=run_dir, master=master)
    run_id = run.collector.find_run(run_id)
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
