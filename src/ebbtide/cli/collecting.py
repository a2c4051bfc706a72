"""A collector for one command, and what it works with: worker processes, or Spark."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Final

from ebbtide import interrupts
from ebbtide.cli.command import Cli
from ebbtide.cli.progress import StepProgress
from ebbtide.cli.text import parse_date
from ebbtide.durations import parse_duration
from ebbtide.errors import EbbtideError, InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbtide.formats.base import RepositoryFormat
    from ebbtide.formats.icechunk.repository import IcechunkRepository
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.engine import Engine
    from ebbtide.retention.expiry import Expiry
    from ebbtide.settings import Settings


AUTO_MASTER: Final = "auto"
LOCAL_MASTER: Final = "local[*]"
"""Spark inside one process of this machine."""

ASKED: Final = "asked"
NO_QUARANTINE: Final = "none"
ASKED_PERIOD: Final = timedelta(days=7)
"""How long is kept what somebody was asked about."""

LARGE_DATABASE_BYTES: Final = 128 * 2**20
"""Some million files, or a hundred thousand commits."""

ICECHUNK: Final = "icechunk:"
"""What stands before the place of an Icechunk repository."""


@dataclass(frozen=True, slots=True)
class Run:
    """A collector and the display of its steps, which is to be entered while it works; and for how
    long its sweeps keep aside what goes."""

    collector: Collector
    progress: StepProgress
    aside_for: timedelta | None = None


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
    reading: bool = False,
) -> Run:
    """The collector of a repository, with the options of a command; `reading` is for commands that
    only look at runs. A `quarantine` of ASKED is for repositories whose runs can be undone. Starts
    worker processes at most, where they are needed for sure: Spark, and others, when they are
    needed."""
    progress = cli.progress
    cli.when_interrupted(lambda: "Interrupted before it began: nothing was changed")
    # Whether others need workers at all is not known yet.
    sure = mode == "clean" or is_icechunk(repository) or _is_large(cli)
    engine = make_engine(cli.settings, master, progress, starting=sure and not reading)

    from ebbtide.formats.gone import GoneRepository
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.options import RunOptions, parse_mode, parse_sizes

    found: RepositoryFormat
    if is_icechunk(repository):
        settings, sessions = cli.settings, cli.settings.icechunk_grace
        found = open_icechunk(repository, settings, run_dir=run_dir, quiet=quiet)
    elif quiet:
        raise InvalidInput(
            "invalid_argument",
            "--quiet-repository is for Icechunk repositories: Ebbtide knows who works on its own",
        )
    else:
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
        quarantine=_period(found, quarantine),
    )
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
        return Run(remover, progress)
    collector = Collector(found, engine=engine, options=options, observer=progress)
    return Run(collector, progress, options.quarantine)


def _is_large(cli: Cli) -> bool:
    """Whether the store's SQLite file tells of more than one process goes through."""
    from ebbtide.store.completing import DATABASE_FILE

    directory = cli.directory or cli.settings.store
    if directory is None:
        return False
    try:
        return (directory / DATABASE_FILE).stat().st_size > LARGE_DATABASE_BYTES
    except OSError:
        return False


def _period(found: RepositoryFormat, quarantine: str | None) -> timedelta | None:
    """For how long is kept aside what goes. InvalidInput where the format's runs can't be undone,
    or the repository is gone, and it was asked for."""
    if quarantine in (None, NO_QUARANTINE):
        return None
    try:
        found.check_undoable()
    except InvalidInput:
        if quarantine == ASKED:
            return None
        raise
    return ASKED_PERIOD if quarantine == ASKED else parse_duration(quarantine)


def is_icechunk(repository: str) -> bool:
    """Whether a repository is named by the URI of one."""
    return repository.startswith(ICECHUNK)


def open_icechunk(
    repository: str,
    settings: Settings,
    *,
    run_dir: str | None = None,
    quiet: bool = False,
    expiry: Expiry | None = None,
) -> IcechunkRepository:
    """The Icechunk repository that `icechunk:PATH` or `icechunk:URL` names."""
    from ebbtide.formats.icechunk.repository import IcechunkRepository
    from ebbtide.storage import open_storage

    return IcechunkRepository(
        open_storage(repository.removeprefix(ICECHUNK)),
        name=repository,
        settings=settings,
        run_dir=None if run_dir is None else open_storage(run_dir),
        quiet=quiet,
        expiry=expiry,
    )


def make_engine(
    settings: Settings, master: str | None, progress: StepProgress, *, starting: bool = True
) -> Engine:
    """What runs work with: Spark where a master is named, else worker processes of this machine,
    which are `starting` while the rest is loading."""
    from ebbtide.processes import was_submitted

    chosen = master or settings.spark_master
    if chosen == AUTO_MASTER and not was_submitted():
        from ebbtide.gc.workers import Workers

        workers = Workers(settings.workers)
        if starting:
            workers.start()
        _set_up()

        from ebbtide.gc.engine import LocalEngine

        progress.watch(workers.meter)
        return LocalEngine(lambda: _start_spark(settings, LOCAL_MASTER, progress), workers=workers)

    _set_up()

    from ebbtide.gc.spark import SparkEngine

    return SparkEngine(lambda: _start_spark(settings, chosen, progress))


def _set_up() -> None:
    """This process, which holds little, and looks at many rows."""
    from ebbtide.memory import hold_little, load_arrow_lightly
    from ebbtide.processes import collect_seldom

    load_arrow_lightly()
    hold_little()
    collect_seldom()


def _start_spark(settings: Settings, master: str, progress: StepProgress) -> SparkSession:
    from ebbtide.gc.session import build_session

    progress("start", "start")
    with tempfile.TemporaryFile("w+") as log:
        try:
            with _stderr_of_children(log):
                session = build_session(
                    master=master,
                    driver_memory=settings.spark_driver_memory,
                    archive=settings.spark_archive,
                )
        except EbbtideError:
            progress.pause()
            log.seek(0)
            sys.stderr.write(log.read())
            raise
        finally:
            if interrupts.is_installed():
                # Spark has a handler of its own for Ctrl-C, which knows no second time.
                interrupts.install()
    progress("start", "end")
    return session


@contextmanager
def _stderr_of_children(file: IO[str]) -> Iterator[None]:
    """What is started in the block writes its stderr into `file`, for as long as it lives.

    Spark's log would otherwise be written over everything else on the terminal; what it has to
    say of a run comes to us as an exception.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
