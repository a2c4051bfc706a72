"""Makes the collector of one command, and its engine: Spark, or this process alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from ebbtide.api import engines
from ebbtide.cli.command import Cli
from ebbtide.cli.interrupting import SWEPT, sweep_told
from ebbtide.cli.parsing import parse_date
from ebbtide.cli.progress import StepProgress
from ebbtide.durations import format_duration
from ebbtide.errors import EbbtideError
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.logs import bind_run
from ebbtide.processes import DUCKDB, collect_seldom
from ebbtide.text import count_text

if TYPE_CHECKING:
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.engines.base import Engine
    from ebbtide.settings import Settings


SMALL_DATABASE_BYTES: Final = 32 * 2**20
"""A database below this size has at most some hundred thousand files, or ten thousand commits."""


@dataclass(frozen=True, slots=True)
class Run:
    """A collector, the display of its steps, and the quarantine of its sweeps, or None.
    `delete_versions` says that its sweeps delete versions too.

    Enter `progress` while the collector works.
    """

    collector: Collector
    progress: StepProgress
    quarantine: timedelta | None = None
    delete_versions: bool = False


def open_collector(
    cli: Cli,
    repository: str,
    *,
    grace: str | None = None,
    unsafe: bool = False,
    allow_share: bool = False,
    quiet: bool = False,
    run_dir: str | None = None,
    master: str | None = None,
    mode: str = "auto",
    sizes: str | None = None,
    inventory: str | None = None,
    inventory_date: str | None = None,
    quarantine: str | None = None,
    delete_versions: bool | None = None,
    accept_lost_commits: bool = False,
    reading: bool = False,
    conf: Sequence[str] = (),
    starting: bool = False,
    engine: Engine | None = None,
) -> Run:
    """Returns the collector of a repository, with the options of a command.

    `reading` is for commands that only read runs. A `quarantine` of ASKED has an effect only if
    runs of the repository can be undone. `conf` and `starting` are arguments of `make_engine`.
    With `engine`, no other one is made: several repositories then share one Spark.
    """
    cli.when_interrupted(lambda: "Interrupted before it began: nothing was changed")
    if engine is None:
        chosen, shown = DUCKDB if reading else master, cli.progress
        short = not is_elsewhere(repository) and is_small(cli)
        engine = make_engine(cli.settings, chosen, shown, conf=conf, starting=starting, short=short)

    from ebbtide.api.collected import open_collected

    found = open_collected(
        repository,
        settings=cli.settings,
        store=lambda: cli.store,
        run_dir=run_dir,
        quiet=quiet,
        gone=True,
    )
    options = found.options(
        grace=grace,
        unsafe=unsafe,
        allow_share=allow_share,
        run_dir=run_dir,
        mode=mode,
        sizes=sizes,
        inventory=inventory,
        inventory_date=None if inventory_date is None else parse_date(inventory_date),
        quarantine=quarantine,
        delete_versions=delete_versions,
        accept_lost_commits=accept_lost_commits,
    )
    found.form.on_hold = bind_run
    collector = found.collector(engine, options, cli.progress)
    return Run(collector, cli.progress, options.quarantine, options.delete_versions)


def is_small(cli: Cli) -> bool:
    """Whether the store's SQLite file is so small that a run takes seconds. The JVM then need not
    compile much."""
    from ebbtide.store.completing import DATABASE_FILE

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
