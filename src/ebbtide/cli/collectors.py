"""Makes the collector of one command, and its engine: Spark, or this process alone.

Other programs are told of the end of its run (`ebbtide.notify`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

import typer

from ebbtide.api import engines
from ebbtide.cli.command import Cli
from ebbtide.cli.progress import SWEPT, StepProgress, sweep_told
from ebbtide.durations import format_duration
from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.logs import bind_run
from ebbtide.prices import Prices
from ebbtide.processes import DUCKDB, collect_seldom
from ebbtide.run_request import RunRequest
from ebbtide.text import count_text

if TYPE_CHECKING:
    from ebbtide.formats.base import RepositoryFormat
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.engines.base import Engine
    from ebbtide.gc.report import RunReport
    from ebbtide.notify import RunEnd
    from ebbtide.settings import Settings


SMALL_DATABASE_BYTES: Final = 32 * 2**20
"""A database below this size has at most some hundred thousand files, or ten thousand commits."""

Ended = Callable[["RunReport"], "RunReport"]
"""Tells of a run by its report, and returns the report with a warning for each that could not be
told."""


@dataclass(frozen=True, slots=True)
class Run:
    """A collector, the display of its steps, and the quarantine of its sweeps, or None.
    `delete_versions` says that its sweeps delete versions too. `form` is the repository.

    Enter `progress` while the collector works.
    """

    collector: Collector
    progress: StepProgress
    form: RepositoryFormat
    quarantine: timedelta | None = None
    delete_versions: bool = False


def open_collector(
    cli: Cli,
    repository: str,
    *,
    quiet: bool = False,
    master: str | None = None,
    conf: Sequence[str] = (),
    reading: bool = False,
    starting: bool = False,
    engine: Engine | None = None,
    **options: Unpack[RunRequest],
) -> Run:
    """Returns the collector of a repository, with the options of a command.

    `reading` is for commands that only read runs. A `quarantine` of ASKED has an effect only if
    runs of the repository can be undone. `conf` and `starting` are arguments of `make_engine`.
    With `engine`, no other one is made: several repositories then share one Spark.
    """
    cli.when_interrupted(lambda: "Interrupted before it began: nothing was changed")
    if engine is None:
        master = DUCKDB if reading else master
        short, shown = not is_elsewhere(repository) and is_small(cli), cli.progress
        engine = make_engine(cli.settings, master, shown, conf=conf, starting=starting, short=short)

    from ebbtide.api.collected import open_collected

    Prices.of(cli.settings)  # a bad file of prices is told before the work begins
    found = open_collected(
        repository,
        settings=cli.settings,
        store=lambda: cli.store,
        run_dir=options.get("run_dir"),
        quiet=quiet,
        gone=True,
    )
    chosen = found.options(**options)
    collector = found.collector(engine, chosen, cli.progress)
    collector.on_hold = bind_run
    return Run(collector, cli.progress, found.form, chosen.quarantine, chosen.delete_versions)


def is_small(cli: Cli) -> bool:
    """Whether the store's SQLite file is so small that a run takes seconds. The JVM then need not
    compile much."""
    from ebbtide.store.completions import DATABASE_FILE

    directory = cli.directory or cli.settings.store
    try:
        size = 0 if directory is None else (directory / DATABASE_FILE).stat().st_size
    except OSError:
        return False
    return 0 < size < SMALL_DATABASE_BYTES


def when_swept(cli: Cli, run: Run, repository: str, run_id: str) -> None:
    """Sets the text for an interrupt during the sweep of a run."""
    run.progress.quarantines = run.quarantine is not None

    def done() -> str | None:
        # The report is written before the state in the database, and before the ended quarantines
        # of earlier runs are deleted.
        with suppress(EbbtideError):
            return SWEPT if run.collector.show(run_id).state == "swept" else None
        return None

    told = partial(sweep_told, run.progress)
    cli.when_interrupted(told, ("gc", "sweep"), (repository, run_id), done=done)


def say_quarantine(cli: Cli, quarantine: timedelta, files: int) -> None:
    """Prints what a quarantine of so many files means for the storage, before the question. Of no
    files there is nothing to say, and a nightly run stays silent."""
    if files == 0:
        return
    cli.output.say(
        f"the files stay in quarantine for {format_duration(quarantine)}, and use storage until "
        f"then; --quarantine none deletes at once. In a directory each file is renamed. An object "
        f"storage gets {count_text(files, 'copy', 'copies')} and "
        f"{count_text(-(-files // 1000), 'delete')}, and as many deletes when the quarantine ends"
    )


def say_versions(cli: Cli, run: Run) -> None:
    """Says before a sweep that nothing can restore the versions that it deletes."""
    if not run.delete_versions:
        return
    if run.quarantine is None:
        cli.output.say(
            "--delete-versions: the bucket's versions of the files are deleted too. Neither "
            "'gc undo' nor the bucket can restore them"
        )
        return
    cli.output.say(
        "--delete-versions: at the end of the quarantine, the bucket's versions of the files are "
        "deleted too. Until then 'gc undo' restores the files; afterwards nothing does"
    )


def make_engine(
    settings: Settings,
    master: str | None,
    progress: StepProgress,
    *,
    conf: Sequence[str] = (),
    starting: bool = False,
    short: bool = False,
) -> Engine:
    """Returns the engine of a command, as `api.engines.make_engine` does. `progress` shows its
    counts."""
    collect_seldom()
    engine = engines.make_engine(
        settings, master, progress, conf=conf, starting=starting, short=short
    )
    progress.watch(engine.meter)
    return engine


@contextmanager
def run_end(cli: Cli, repository: str, action: str, metrics_file: Path | None) -> Iterator[Ended]:
    """Yields the function to call with the report of the run. If an error ends the block before, it
    tells of the error. Input that is not valid, and names that do not exist, are no runs.

    An interrupt tells nobody: a scheduler that ends a process waits only for some seconds.
    """
    from ebbtide.notify import RunStart

    start = RunStart(repository, action)
    is_told = False

    def ended(report: RunReport) -> RunReport:
        nonlocal is_told
        is_told = True
        warnings = _told(cli, start.reported(report.to_json()), metrics_file)
        return replace(report, warnings=(*report.warnings, *warnings))

    try:
        yield ended
    except (InvalidInput, NotFound, typer.Exit, typer.TyperException):
        raise
    except Exception as error:
        if is_told:  # the run has ended, and its answer could not be printed
            raise
        _told(cli, start.raised(error), metrics_file)
        raise


def _told(cli: Cli, end: RunEnd, metrics_file: Path | None) -> list[str]:
    """Tells of an end, and prints the warnings. An interrupt stops only the telling."""
    from ebbtide.notify import tell

    try:
        warnings = tell(end, cli.settings, metrics_file=metrics_file)
    except KeyboardInterrupt:
        warnings = ["the run has ended, but an interrupt stopped telling others of it"]
    for each in warnings:
        cli.output.warn(each)
    return warnings
