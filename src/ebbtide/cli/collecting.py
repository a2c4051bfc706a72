"""A collector for one command, and the Spark session that it starts when it needs one."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from ebbtide.cli.command import Cli
from ebbtide.cli.progress import StepProgress
from ebbtide.durations import parse_duration
from ebbtide.errors import EbbtideError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbtide.gc.collector import Collector
    from ebbtide.settings import Settings


@dataclass(frozen=True, slots=True)
class Run:
    """A collector and the display of its steps, which is to be entered while it works."""

    collector: Collector
    progress: StepProgress


def open_collector(
    cli: Cli,
    repository: str,
    *,
    grace: str | None = None,
    unsafe: bool = False,
    allow_share: bool = False,
    run_dir: str | None = None,
    master: str | None = None,
) -> Run:
    """The collector of a repository, with the options of a command. Starts nothing yet."""
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.options import RunOptions

    settings = cli.store.settings
    options = RunOptions.of(
        settings,
        grace=None if grace is None else parse_duration(grace),
        unsafe=unsafe,
        allow_share=allow_share,
        run_dir=run_dir,
    )
    progress = StepProgress(quiet=cli.output.as_json)
    collector = Collector(
        cli.collected(repository),
        session=lambda: _start_spark(settings, master, progress),
        options=options,
        observer=progress,
    )
    return Run(collector, progress)


def _start_spark(settings: Settings, master: str | None, progress: StepProgress) -> SparkSession:
    from ebbtide.gc.session import build_session

    progress("start", "start")
    with tempfile.TemporaryFile("w+") as log:
        try:
            with _stderr_of_children(log):
                session = build_session(
                    master=master or settings.spark_master,
                    driver_memory=settings.spark_driver_memory,
                )
        except EbbtideError:
            progress.pause()
            log.seek(0)
            sys.stderr.write(log.read())
            raise
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
