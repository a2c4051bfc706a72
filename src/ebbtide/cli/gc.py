"""The commands that collect: `gc plan`, `gc sweep`, `gc run`, `gc give-up`, `gc archive`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack, cast

import typer

from ebbtide.cli import documents, values
from ebbtide.cli.all_repositories import Way, collect_all, plan_all
from ebbtide.cli.collectors import (
    Run,
    open_collector,
    run_end,
    say_quarantine,
    say_versions,
    when_swept,
)
from ebbtide.cli.command import (
    Cli,
    CollectedArgument,
    RefArgument,
    RepositoryArgument,
    YesOption,
    command,
    command_line,
    group,
    run_option,
)
from ebbtide.cli.figures import show_outcome, show_plan, show_summary
from ebbtide.cli.output import confirm, require_answerable
from ebbtide.cli.progress import planning_told
from ebbtide.errors import InvalidInput
from ebbtide.formats.schemes import ASKED, require_not_quiet
from ebbtide.run_request import PlanOptions, RunRequest, SweepOptions
from ebbtide.text import count_text, date_text, one_line, size_text

if TYPE_CHECKING:
    from ebbtide.gc.plan import Plan
    from ebbtide.gc.report import RunReport

app = group("Find and delete files that are no longer needed.")

GraceOption = Annotated[str | None, run_option("grace")]
RunDirOption = Annotated[str | None, run_option("run_dir")]
DeleteVersionsOption = Annotated[bool, run_option("delete_versions")]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet-repository",
        help="Icechunk: no session is open, so that files that were reachable within the grace can "
        "be deleted too.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "--master",
        metavar="ENGINE",
        help="duckdb: without Java, in this process; spark; or a Spark master, such as local[4]. "
        "Default: EBBTIDE_ENGINE and EBBTIDE_SPARK_MASTER.",
        show_default=False,
    ),
]

ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A setting of Spark; repeatable.",
        show_default=False,
    ),
]

AllOption = Annotated[
    bool,
    typer.Option(
        "--all",
        help="All repositories of the store, one after the other, and those that are gone. Not: "
        "those in the trash. Those elsewhere need --repositories.",
        show_default=False,
    ),
]
EveryArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="REPO",
        help="Name of the repository, or icechunk:PATH, icechunk:URL, iceberg:CATALOG, "
        "delta:PATH or lakefs:NAME. Or --all.",
        show_default=False,
        autocompletion=values.repositories,
    ),
]

MetricsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--metrics-file",
        metavar="FILE",
        help="Leave the figures of this run in a file for Prometheus's textfile collector. "
        "Default: EBBTIDE_RUN_METRICS_FILE.",
        show_default=False,
    ),
]


class AllOptions(TypedDict, total=False):
    """The options that go with `--all`."""

    repositories: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --all: the repositories that FILE names, one a line, of every format. * "
            "stands for all of the store, # begins a comment.",
            show_default=False,
        ),
    ]
    parallel: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With --all: N repositories at the same time, each in a process and with an "
            "engine of its own. Default: 1.",
            show_default=False,
        ),
    ]
    digest: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="With --all: write the summary for mail or chat, as HTML to a file that ends in "
            ".html, otherwise as text; repeatable.",
            show_default=False,
        ),
    ]


class PlanWords(PlanOptions, AllOptions):
    """The options of `gc plan`."""


class RunWords(RunRequest, AllOptions):
    """The options of `gc run`."""


@command(app, "plan")
def plan(
    cli: Cli,
    repository: EveryArgument = None,
    every: AllOption = False,
    *,
    run_dir: RunDirOption = None,
    quiet: QuietOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    metrics_file: MetricsFileOption = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Without effect, because a plan asks no question."),
    ] = False,
    **options: Unpack[PlanWords],
) -> None:
    """Plan which files to delete. Deletes nothing: 'gc sweep' carries out the plan."""
    del yes
    way = _way(options, master, conf, metrics_file)
    _require_one_or_all(cli, repository, options, way, every=every, quiet=quiet)
    opened = partial(
        open_collector,
        cli,
        quiet=quiet,
        master=master,
        conf=conf or (),
        starting=True,
        run_dir=run_dir,
        **cast("PlanOptions", options),
    )
    if repository is None:
        plan_all(cli, opened, way)
        return
    with run_end(cli, repository, "plan", metrics_file) as ended:
        run = opened(repository)
        cli.when_interrupted(lambda: planning_told(run.progress))
        with run.progress:
            report = run.collector.plan()

        def show() -> None:
            if report.has_plan:
                show_plan(cli.output, run.collector.plan_of(report.run_id))
                cli.output.line()
            show_summary(cli, report)

        finish(cli, ended(report), show)


@command(app, "archive")
def archive(
    cli: Cli,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="File to write. Default: a name with the platform and the versions.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write an archive of this program and its packages, for Spark executors on other machines."""
    from ebbtide.gc.engines.spark.conf import archive_name, write_archive

    target = file or Path(archive_name())
    names = write_archive(target)

    def show() -> None:
        size = size_text(target.stat().st_size)
        cli.output.line(f"{target}: {count_text(len(names), 'package')}, {size}")
        cli.output.line(f"to use it: EBBTIDE_SPARK_ARCHIVE={target} ebbtide gc run … --master URL")

    cli.output.answer({"path": str(target), "packages": names}, show)


@command(app, "sweep")
def sweep(
    cli: Cli,
    repository: CollectedArgument,
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            autocompletion=values.runs,
            help="Run to sweep: its id, the beginning of it, or latest. Default: the newest plan "
            "that was not swept.",
            show_default=False,
        ),
    ] = None,
    *,
    run_dir: RunDirOption = None,
    delete_versions: DeleteVersionsOption = False,
    quiet: QuietOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    metrics_file: MetricsFileOption = None,
    yes: YesOption = False,
    **options: Unpack[SweepOptions],
) -> None:
    """Carry out a plan: delete its candidates, except those that are needed again.

    A sweep that was interrupted or incomplete continues.
    """
    options["quarantine"] = options.get("quarantine") or ASKED
    with run_end(cli, repository, "sweep", metrics_file) as ended:
        run = open_collector(
            cli,
            repository,
            quiet=quiet,
            master=master,
            conf=conf or (),
            starting=True,
            run_dir=run_dir,
            delete_versions=delete_versions,
            **options,
        )
        run_id = run.collector.find_run(run_id) if run_id else run.collector.newest_unswept()
        require_answerable(yes=yes)
        # With --yes, the plan is not shown again: 'gc plan' and 'gc show' show it.
        plan = None if yes else run.collector.plan_to_confirm(run_id)
        say_versions(cli, run)
        if plan is not None and not _agreed(cli, plan, run.quarantine, yes=yes):
            cli.declined("nothing was deleted; the plan stays")
            return
        when_swept(cli, run, repository, run_id)
        with run.progress:
            report = run.collector.sweep(run_id)
        _finish_sweep(cli, ended(report))


@command(app, "run")
def run_both(
    cli: Cli,
    repository: EveryArgument = None,
    every: AllOption = False,
    *,
    quiet: QuietOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    metrics_file: MetricsFileOption = None,
    yes: YesOption = False,
    **options: Unpack[RunWords],
) -> None:
    """Plan a run, show its figures, ask, and sweep it.

    With --all, one question is for all repositories, after their plans, and one summary is at the
    end. With --yes, each one is planned and swept before the next. A failure does not stop the
    others. The exit code is the worst: of 2, 3, 1, 4 and 0 the first that a repository has.
    """
    way = _way(options, master, conf, metrics_file)
    _require_one_or_all(cli, repository, options, way, every=every, quiet=quiet)
    options["quarantine"] = options.get("quarantine") or ASKED
    opened = partial(
        open_collector,
        cli,
        quiet=quiet,
        master=master,
        conf=conf or (),
        starting=True,
        **cast("RunRequest", options),
    )
    if repository is None:
        require_answerable(yes=yes)
        collect_all(cli, opened, way, yes=yes)
    else:
        _run_one(cli, opened, repository, yes=yes, metrics_file=metrics_file)


def _run_one(
    cli: Cli,
    opened: Callable[[str], Run],
    repository: str,
    *,
    yes: bool,
    metrics_file: Path | None,
) -> None:
    with run_end(cli, repository, "run", metrics_file) as ended:
        run = opened(repository)
        # After the repository is known, and before any work: a forgotten --yes costs nothing.
        require_answerable(yes=yes)

        def agreed(plan: Plan) -> bool:
            run.progress.pause()
            when_swept(cli, run, repository, plan.run_id)
            say_versions(cli, run)
            return _agreed(cli, plan, run.quarantine, yes=yes)

        cli.when_interrupted(lambda: planning_told(run.progress))
        with run.progress:
            report = run.collector.run(agreed)
        if report.state == "planned":
            way = command_line(cli.context, ("gc", "sweep"), (repository, report.run_id))
            cli.output.say(f"nothing was deleted; the plan stays: {way}")
        elif report.state == "refused" and report.has_plan and not cli.output.as_json:
            show_plan(cli.output, run.collector.plan_of(report.run_id))
        _finish_sweep(cli, ended(report))


def _way(
    options: AllOptions, master: str | None, conf: list[str] | None, metrics_file: Path | None
) -> Way:
    """Takes the options of `--all` out of a command's options. Those of the runs are left."""
    return Way(
        options.pop("repositories", None),
        options.pop("parallel", None),
        options.pop("digest", None) or (),
        master,
        conf or (),
        metrics_file,
    )


def _require_one_or_all(
    cli: Cli,
    repository: str | None,
    options: PlanOptions,
    way: Way,
    *,
    every: bool,
    quiet: bool,
) -> None:
    """Raises a usage error unless there is either a repository or `--all`, and InvalidInput
    `invalid_argument` for options that cannot be for all."""
    if (repository is None) != every:
        cli.context.fail("give either the name of a repository or --all")
    if not every and (way.file or way.parallel or way.digests):
        cli.context.fail("--repositories, --parallel and --digest are for --all")
    if every:
        require_not_quiet(quiet=quiet)
        if options.get("inventory") is not None:
            raise InvalidInput(
                "invalid_argument",
                "--inventory is for one repository, because it lists one storage: leave out --all",
            )


def _agreed(cli: Cli, plan: Plan, quarantine: timedelta | None, *, yes: bool) -> bool:
    """Shows a plan, and asks whether to carry it out. Asks nothing if it would change nothing."""
    from ebbtide.gc.plan import REMOVAL

    if not cli.output.as_json:
        show_plan(cli.output, plan)
        cli.output.line()
    total = plan.candidate_total
    if total.objects == 0 and plan.mode != REMOVAL:
        closed = plan.expired_count + plan.forgettable_count
        if closed == 0:
            return True
        commits = count_text(closed, "expired commit")
        name = plan.identity.repository_name
        return confirm(f"close {commits} of {name}, without deleting a file?", yes=yes)
    files = f"{count_text(total.objects, 'file')} ({size_text(total.bytes_total)})"
    doing = f"delete {files} of {plan.identity.repository_name}"
    if quarantine is not None:
        doing = f"quarantine {files} of {plan.identity.repository_name}"
        say_quarantine(cli, quarantine, total.objects)
    return confirm(f"{doing}, and {_consequence(plan)}?", yes=yes)


def _consequence(plan: Plan) -> str:
    from ebbtide.gc.plan import REMOVAL

    if plan.mode == REMOVAL:
        return "then the metadata of this repository, which is gone"
    return "close the expired commits"


def _finish_sweep(cli: Cli, report: RunReport) -> None:
    def show() -> None:
        for incident in report.incidents:
            cli.output.warn(incident)
        if report.state in ("swept", "incomplete"):
            if report.has_outcomes:
                show_outcome(cli.output, report)
                cli.output.line()
            if report.mode == "removal":
                _show_removal(cli, report)
            show_summary(cli, report)

    finish(cli, report, show)


def _show_removal(cli: Cli, report: RunReport) -> None:
    for warning in report.warnings:
        cli.output.warn(warning)
    if report.state == "swept":
        cli.output.line(f"only the record of this run is left of {report.repository}")


def finish(cli: Cli, report: RunReport, show: Callable[[], None]) -> None:
    """Answers with a report, and ends with the exit code of its state."""
    from ebbtide.gc.report import EXIT_CODES

    cli.output.answer(report.to_json(), show)
    if report.error is not None:
        cli.output.error(report.error["message"])
    raise typer.Exit(EXIT_CODES[report.state])


@command(app, "give-up")
def give_up(
    cli: Cli,
    repository: RepositoryArgument,
    ref: RefArgument,
    reason: Annotated[
        str,
        typer.Option(metavar="TEXT", help="The reason, for the record.", show_default=False),
    ],
    yes: YesOption = False,
) -> None:
    """Declare a damaged commit lost, so that it no longer stops runs.

    Use it for a commit whose tree or ranges cannot be read, and that no backup restores. The commit
    then counts as expired, and the files that only it needs are garbage.
    """
    require_answerable(yes=yes)
    found = cli.repository(repository)
    record = found.commits.get(ref)
    cli.output.say(
        f"commit {record.commit_id} of {date_text(record.created_at)} UTC: "
        f"{one_line(record.message)}"
    )
    if cli.may("declare it lost for good?", yes=yes):
        given_up = found.give_up(record.commit_id, reason)
        cli.output.answer(
            documents.commit(given_up),
            lambda: cli.output.line(f"commit {record.commit_id} is given up"),
        )
