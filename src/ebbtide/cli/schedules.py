"""The commands `schedule`: when servers of the store start runs by themselves."""

from __future__ import annotations

from getpass import getuser
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from ebbtide.cli.command import Cli, CollectedArgument, command, group
from ebbtide.documents import document_of
from ebbtide.run_request import ScheduledOptions
from ebbtide.text import count_text, date_text, short_id

if TYPE_CHECKING:
    from ebbtide.api.collected import Collected
    from ebbtide.store.schedules import Schedule

app = group("Set when servers start runs, and see what became of the due times.")

CronArgument = Annotated[
    str,
    typer.Argument(
        metavar="CRON",
        help="Minute, hour, day of the month, month and day of the week, as for cron.",
    ),
]
TimezoneOption = Annotated[
    str,
    typer.Option("--timezone", metavar="ZONE", help="Time zone, such as Europe/Berlin."),
]
JitterOption = Annotated[
    str | None,
    typer.Option(
        "--jitter",
        metavar="PERIOD",
        help="Longest delay of a run. It differs between repositories, so that they do not all "
        "start at once.",
    ),
]


@command(app, "set")
def set_one(
    cli: Cli,
    repository: CollectedArgument,
    cron: CronArgument,
    timezone: TimezoneOption = "UTC",
    jitter: JitterOption = None,
    **options: Unpack[ScheduledOptions],
) -> None:
    """Set the schedule of a repository. It replaces the present one as a whole.

    A server of the store must be running at the due times: 'ebbtide serve'.
    """
    from ebbtide.api.schedules import set_schedule

    made = set_schedule(
        cli.store,
        _collected(cli, repository),
        cron=cron,
        timezone=timezone,
        jitter=jitter,
        options=options,
        by=getuser(),
    )
    cli.output.answer(document_of(made), lambda: _show(cli, made))


@command(app, "show")
def show(cli: Cli, repository: CollectedArgument) -> None:
    """Show the schedule of a repository, its next due time and its last run."""
    found = _collected(cli, repository)
    schedule = cli.store.schedules.get(found.key, found.name)
    cli.output.answer(document_of(schedule), lambda: _show(cli, schedule))


@command(app, "list")
def list_all(cli: Cli) -> None:
    """List the schedules of the store: next due time, last run, and due times without a run."""
    found, _ = cli.store.schedules.all()

    def show() -> None:
        cli.output.table(
            ["repository", "cron", "zone", "next", "last run", "outcome", "missed", "skipped"],
            [
                [
                    each.repository,
                    each.cron,
                    each.timezone,
                    _next_text(each),
                    "" if each.last_run is None else date_text(each.last_run.started_at),
                    "" if each.last_run is None else each.last_run.outcome,
                    str(each.missed_count),
                    str(each.skipped_count),
                ]
                for each in found
            ],
            none="no schedules: set one with 'ebbtide schedule set'",
        )

    cli.output.answer({"schedules": [document_of(each) for each in found]}, show)


@command(app, "delete")
def delete(cli: Cli, repository: CollectedArgument) -> None:
    """Delete the schedule of a repository. A run that is going on continues."""
    found = _collected(cli, repository)
    cli.store.schedules.remove(found.key, found.name)
    cli.output.answer(
        {"repository": found.name, "deleted": True},
        lambda: cli.output.line(f"{found.name} has no schedule any more"),
    )


@command(app, "enable")
def enable(cli: Cli, repository: CollectedArgument) -> None:
    """Enable a schedule that was disabled."""
    _switch(cli, repository, enabled=True)


@command(app, "disable")
def disable(cli: Cli, repository: CollectedArgument) -> None:
    """Disable a schedule. Its due times do not count as missed until it is enabled again."""
    _switch(cli, repository, enabled=False)


def _switch(cli: Cli, repository: str, *, enabled: bool) -> None:
    found = _collected(cli, repository)
    schedule = cli.store.schedules.enable(found.key, found.name, enabled=enabled)
    cli.output.answer(document_of(schedule), lambda: _show(cli, schedule))


def _collected(cli: Cli, repository: str) -> Collected:
    """Returns a repository of the store, or one elsewhere. The store has the schedules of both."""
    from ebbtide.api.collected import open_collected

    return open_collected(repository, settings=cli.settings, store=lambda: cli.store)


def _show(cli: Cli, schedule: Schedule) -> None:
    line, timetable = cli.output.line, schedule.timetable
    line(f"{schedule.repository}: {timetable.describe()} ({timetable.cron}), {timetable.timezone}")
    line(f"next run: {_next_text(schedule)}")
    if schedule.options["dry_run"]:
        line("runs only plan")
    else:
        line(f"quarantine: {schedule.options['quarantine']}")
    last = schedule.last_run
    if last is None:
        line("last run: none yet")
    else:
        error = "" if last.error is None else f": {last.error['kind']}: {last.error['message']}"
        run = "" if last.run_id is None else f", run {short_id(last.run_id)}"
        line(f"last run: {date_text(last.started_at)}{run}, {last.outcome}{error}")
    line(
        f"{count_text(schedule.started_count, 'run')}, {schedule.missed_count} missed and "
        f"{schedule.skipped_count} skipped since {date_text(schedule.set_at)}, when "
        f"{schedule.set_by} set it"
    )


def _next_text(schedule: Schedule) -> str:
    start = schedule.next_start_at
    return "disabled" if start is None else f"{date_text(start)} UTC"
