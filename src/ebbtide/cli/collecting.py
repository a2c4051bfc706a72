"""Makes the collector of one command, and its engine: Spark, or this process alone."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ebbtide.cli.command import Cli
from ebbtide.cli.parsing import parse_date
from ebbtide.cli.progress import StepProgress
from ebbtide.durations import parse_duration
from ebbtide.errors import EbbtideError
from ebbtide.formats.elsewhere import (
    always_quarantined,
    is_elsewhere,
    open_elsewhere,
    require_not_quiet,
)
from ebbtide.imports import allow_pandas, require_extra
from ebbtide.processes import NO_SPARK, REMOTE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbtide.formats.base import RepositoryFormat
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.engine import Engine
    from ebbtide.gc.options import RunOptions
    from ebbtide.gc.spark.session import Launched
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
    reading: bool = False,
    conf: Sequence[str] = (),
    starting: bool = False,
) -> Run:
    """Returns the collector of a repository, with the options of a command.

    `reading` is for commands that only read runs. A `quarantine` of ASKED has an effect only if
    runs of the repository can be undone. `conf` and `starting` are arguments of `make_engine`.
    """
    progress = cli.progress
    cli.when_interrupted(lambda: "Interrupted before it began: nothing was changed")
    chosen = NO_SPARK if reading else master
    short = not is_elsewhere(repository) and _is_small(cli)
    engine = make_engine(cli.settings, chosen, progress, conf=conf, starting=starting, short=short)

    from ebbtide.gc.options import RunOptions, parse_mode, parse_quarantine, parse_sizes

    found: RepositoryFormat
    sessions: timedelta | None
    if is_elsewhere(repository):
        settings = cli.settings
        found, sessions = open_elsewhere(repository, settings, run_dir=run_dir, quiet=quiet)
    else:
        require_not_quiet(quiet=quiet)
        settings, sessions = cli.store.settings, None
        found = cli.collected(repository)
    options = RunOptions.of(
        settings,
        sessions=sessions,
        grace=None if grace is None else parse_duration(grace),
        unsafe=unsafe,
        allow_share=allow_share,
        run_dir=run_dir,
        mode=parse_mode(mode),
        sizes=None if sizes is None else parse_sizes(sizes),
        inventory=inventory,
        inventory_date=None if inventory_date is None else parse_date(inventory_date),
        quarantine=parse_quarantine(quarantine or always_quarantined(repository), found),
        delete_versions=delete_versions,
    )
    return _run_of(cli, found, engine, options)


def _run_of(cli: Cli, found: RepositoryFormat, engine: Engine, options: RunOptions) -> Run:
    """Returns the collector of a repository. For a gone repository, it is a `Remover`."""
    from ebbtide.formats.gone import GoneRepository
    from ebbtide.gc.collector import Collector

    progress = cli.progress
    if isinstance(found, GoneRepository):
        from ebbtide.gc.removing import Remover
        from ebbtide.purge.whole import outlast

        gone = found
        remover = Remover(
            gone,
            engine=engine,
            options=options,
            observer=progress,
            preserve=lambda: outlast(cli.store, gone.context),
        )
        return Run(remover, progress, None, options.delete_versions)
    collector = Collector(found, engine=engine, options=options, observer=progress)
    return Run(collector, progress, options.quarantine, options.delete_versions)


def _is_small(cli: Cli) -> bool:
    """Whether the store's SQLite file is so small that a run takes seconds. The JVM then need not
    compile much."""
    from ebbtide.store.completing import DATABASE_FILE

    directory = cli.directory or cli.settings.store
    try:
        size = 0 if directory is None else (directory / DATABASE_FILE).stat().st_size
    except OSError:
        return False
    return 0 < size < SMALL_DATABASE_BYTES


def make_engine(
    settings: Settings,
    master: str | None,
    progress: StepProgress,
    *,
    conf: Sequence[str] = (),
    starting: bool = False,
    short: bool = False,
) -> Engine:
    """Returns the engine of runs: Spark on a master, or this process alone for NO_SPARK.

    Without `master`, the settings name it. `conf` are settings of Spark, as texts. Spark starts
    on first use. With `starting`, its JVM starts now, while other modules load. `short` is an
    argument of `gc.spark.session.launch`.
    """
    from ebbtide.processes import collect_seldom, was_submitted

    collect_seldom()
    chosen = master or settings.spark_master
    engine: Engine
    if chosen == NO_SPARK and not was_submitted():
        from ebbtide.gc.none import LocalEngine

        engine = LocalEngine()
    else:
        engine = _spark_engine(settings, chosen, progress, conf, starting=starting, short=short)
    progress.watch(engine.meter)
    return engine


def _spark_engine(
    settings: Settings,
    master: str,
    progress: StepProgress,
    conf: Sequence[str],
    *,
    starting: bool,
    short: bool,
) -> Engine:
    extra = "connect" if master.startswith(REMOTE) else "spark"
    require_extra("Spark (--master none needs none)", extra, "packaging", "pyspark", "py4j")

    from ebbtide.gc.spark.conf import conf_of, read_pairs, read_text

    named = read_pairs(conf)
    if master.startswith(REMOTE):
        from ebbtide.gc.spark.connect import ConnectEngine, connect

        return ConnectEngine(
            master, partial(connect, master, read_text(settings.spark_conf) | named)
        )
    spark = _Spark(settings, master, progress, conf_of(settings) | named, short=short)
    if starting:
        spark.launch()

    from ebbtide.gc.spark.engine import SparkEngine

    return SparkEngine(spark.session, executors_wait=settings.spark_executors_wait)


class _Spark:
    """Spark for one command. Spark ends with this process."""

    def __init__(
        self,
        settings: Settings,
        master: str,
        progress: StepProgress,
        conf: Mapping[str, str],
        *,
        short: bool,
    ) -> None:
        self._settings = settings
        self._master = master
        self._progress = progress
        self._conf = conf
        self._short = short
        self._launched: Launched | None = None
        self._session: SparkSession | None = None

    def launch(self) -> Launched:
        """Starts the JVM, once. Raises Failed `java_not_found`."""
        if self._launched is None:
            from ebbtide.gc.spark import session

            self._launched = session.launch(
                master=self._master,
                driver_memory=self._settings.spark_driver_memory,
                archive=self._settings.spark_archive,
                conf=self._conf,
                short=self._short,
            )
            atexit.register(self._end)
        return self._launched

    def session(self) -> SparkSession:
        """Returns the session when its JVM answers. Raises Failed as `Launched.session` does."""
        if self._session is None:
            self._progress("start", "start")
            launched = self.launch()
            # Imported while the JVM starts: functions over Arrow batches in Spark need pandas.
            allow_pandas()
            require_extra("Spark", "spark", "pandas")
            import_module("pandas")
            try:
                self._session = launched.session()
            except EbbtideError:
                self._progress.pause()
                raise
            self._progress("start", "end")
        return self._session

    def _end(self) -> None:
        from ebbtide.gc.spark import session

        if self._session is not None:
            session.end(self._session)
        elif self._launched is not None:
            self._launched.close()
