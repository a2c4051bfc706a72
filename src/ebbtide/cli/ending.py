"""Tells other programs of the end of a command's run: `ebbtide.notify`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ebbtide.cli.command import Cli
from ebbtide.clock import SystemClock
from ebbtide.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from ebbtide.gc.report import RunReport
    from ebbtide.notify.ending import RunEnd

Ended = Callable[["RunReport"], "RunReport"]
"""Tells of a run by its report, and returns the report with a warning for each that could not be
told."""


@contextmanager
def run_end(cli: Cli, repository: str, action: str, metrics_file: Path | None) -> Iterator[Ended]:
    """Yields the function to call with the report of the run. If an error ends the block before, it
    tells of the error. Input that is not valid, and names that do not exist, are no runs.

    An interrupt tells nobody: a scheduler that ends a process waits only for some seconds.
    """
    from ebbtide.notify.ending import RunEnd, end_of_report, error_of, outcome_of

    now = SystemClock().host_now
    started_at = now()
    is_told = False

    def ended(report: RunReport) -> RunReport:
        nonlocal is_told
        is_told = True
        end = end_of_report(
            repository, action, report.to_json(), started_at=started_at, ended_at=now()
        )
        warnings = _told(cli, end, metrics_file)
        return replace(report, warnings=(*report.warnings, *warnings))

    try:
        yield ended
    except (InvalidInput, NotFound, typer.Exit, typer.TyperException):
        raise
    except Exception as error:
        if is_told:  # the run has ended, and its answer could not be printed
            raise
        end = RunEnd(
            repository=repository,
            action=action,
            outcome=outcome_of(error),
            started_at=started_at,
            ended_at=now(),
            error=error_of(error),
        )
        _told(cli, end, metrics_file)
        raise


def _told(cli: Cli, end: RunEnd, metrics_file: Path | None) -> list[str]:
    """Tells of an end, and prints the warnings. An interrupt stops only the telling."""
    from ebbtide.notify.telling import tell

    try:
        warnings = tell(end, cli.settings, metrics_file=metrics_file)
    except KeyboardInterrupt:
        warnings = ["the run has ended, but an interrupt stopped telling others of it"]
    for each in warnings:
        cli.output.warn(each)
    return warnings
