"""`init`: a store is made, or brought to this program's version. `promises`: how long what it
promises lasts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.command import Cli, YesOption, command
from ebbtide.cli.keys import pair_document, show_pair
from ebbtide.durations import format_duration, parse_duration


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    command(app, "init")(init)
    command(app, "promises")(promises)


def init(
    cli: Cli,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Directory of the store, whatever --store says.", show_default=False
        ),
    ],
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="Bring the database of a store that is there to this program's version.",
        ),
    ] = False,
) -> None:
    """Make a store in a directory, which is made if need be, and its first access key.

    The key is an admin's. Its secret is printed here, and never again.
    """
    from ebbtide.store.embedded import Store
    from ebbtide.store.keys import Role

    pair = None
    with (Store.upgrade if upgrade else Store.init)(directory) as store:
        path = directory.resolve()
        document = {"store": str(path), "store_id": store.store_id}
        if not upgrade:
            pair = store.keys.create(Role.ADMIN)
            document |= pair_document(pair)

    def show() -> None:
        cli.output.line(f"store {'upgraded' if upgrade else 'made'} in {path}")
        if pair is not None:
            show_pair(cli, pair)
        cli.output.line(f"next: export EBBTIDE_STORE={path}")

    cli.output.answer(document, show)


def promises(
    cli: Cli,
    lease_ttl: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="Of locators, and of what a ref pointed at."),
    ] = None,
    trash_time: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="Of what was deleted or has expired."),
    ] = None,
    upload_ttl: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="Of addresses for direct uploads."),
    ] = None,
    prepare_ttl: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="Of lists of what is uncommitted, read in parts."),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Show how long what the store promises lasts, or change it.

    The times are the store's, not those of one process: the settings of who makes the store say
    them first. Locators and addresses that were given out keep the end that they say; a new trash
    time holds for what is in the trash already. A server goes by a new time when it is started
    anew; until then it deletes by the new one, and promises by the old.
    """
    from ebbtide.store.promises import times_of

    asked = {
        name: parse_duration(text)
        for name, text in {
            "lease_ttl": lease_ttl,
            "trash_time": trash_time,
            "upload_ttl": upload_ttl,
            "prepare_ttl": prepare_ttl,
        }.items()
        if text is not None
    }
    times = times_of(cli.store.settings)
    shorter = [name for name in asked if asked[name] < times[name]]
    if shorter:
        cli.output.say(
            "shorter than what was promised until now: "
            + ", ".join(
                f"{name} {format_duration(times[name])} -> {format_duration(asked[name])}"
                for name in shorter
            )
        )
        if not cli.may("promise less?", yes=yes):
            return
    cli.store.promise(asked)
    times |= asked
    cli.output.answer(
        {name: format_duration(time) for name, time in times.items()},
        lambda: cli.output.fields((name, format_duration(time)) for name, time in times.items()),
    )
