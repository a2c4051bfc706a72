"""The command `reclaim`: deletes objects that were never committed and have no references."""

from __future__ import annotations

from dataclasses import asdict
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.command import Cli, command
from ebbtide.text import count_text, size_text

if TYPE_CHECKING:
    from ebbtide.store.reclaimer import Backlog, Reclaimed


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "reclaim")(reclaim)


def reclaim(
    cli: Cli,
    once: Annotated[
        bool,
        typer.Option("--once", help="Delete the objects that are due now, then end."),
    ] = False,
) -> None:
    """Delete objects that were never committed and no longer have a reference.

    Each object is deleted EBBTIDE_LEASE_TTL after it lost its last reference: it was overwritten,
    deleted, reset, not linked in time, or left behind by a write that failed.

    Without --once, the command runs until it is interrupted. 'ebbtide serve' does the same work,
    unless EBBTIDE_RECLAIM is false. Any number of processes may do it at the same time.
    """
    from ebbtide.gc.steps import Meter, advance
    from ebbtide.store.reclaimer import Reclaimed, Reclaimer

    reclaimer = Reclaimer(cli.store)
    total = Reclaimed()
    meter = Meter()
    cli.progress.watch(meter)
    if once:
        cli.when_interrupted(lambda: f"Interrupted: {_text(total)}. The rest is not deleted yet")
    with cli.progress:
        cli.progress("reclaim", "start")
        meter.begin("objects")

        def show(done: Reclaimed) -> None:
            nonlocal total
            total += done
            advance(done.deleted_count)

        interval = cli.store.settings.reclaim_interval.total_seconds()
        stopped = Event()
        try:
            reclaimer.once(show)
            while not once:
                stopped.wait(interval)
                reclaimer.once(show)
        except KeyboardInterrupt:
            # Each batch is either done or left to the next process. No cleanup is needed.
            if once:
                raise
    backlog, _ = reclaimer.backlog()
    document = asdict(total) | {"backlog_count": backlog.address_count}
    cli.output.answer(document, lambda: _print(cli, total, backlog))


def _text(total: Reclaimed) -> str:
    deleted = count_text(total.deleted_count, "object")
    return f"deleted {deleted} ({size_text(total.deleted_bytes)} as far as known)"


def _print(cli: Cli, total: Reclaimed, backlog: Backlog) -> None:
    cli.output.line(_text(total))
    if total.failed_count:
        failed = count_text(total.failed_count, "delete")
        cli.output.warn(f"{failed} failed and will be tried again; check the storage")
    if backlog.address_count:
        waiting = count_text(backlog.address_count, "object")
        cli.output.line(f"{waiting} not due yet")
