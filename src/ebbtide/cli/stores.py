"""The commands `init`, which makes or upgrades a store, and `promises`, which sets the times of its
promises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.command import Cli, YesOption, command
from ebbtide.cli.keys import pair_document, show_pair
from ebbtide.durations import format_duration, parse_duration, parse_period


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    command(app, "init")(init)
    command(app, "promises")(promises)


def init(
    cli: Cli,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory of the store. It overrides --store.",
            show_default=False,
        ),
    ],
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="Upgrade the database of an existing store to this program's version.",
        ),
    ] = False,
) -> None:
    """Make a store in a directory, and its first access key.

    The directory is made if it is missing. The key has the role admin. Its secret is printed here,
    and never again.
    """
    from ebbtide.store.access.keys import Role
    from ebbtide.store.embedded import Store

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
        typer.Option(
            metavar="PERIOD",
            help="How long locators last, and how long a ref's former target stays.",
        ),
    ] = None,
    trash_time: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="How long the content of the trash can be restored."),
    ] = None,
    upload_ttl: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="How long addresses for direct uploads last."),
    ] = None,
    prepare_ttl: Annotated[
        str | None,
        typer.Option(
            metavar="PERIOD", help="How long a list of uncommitted data can be read in pages."
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Show or change how long the store's promises last.

    The times belong to the store, not to one process. Their first values are the settings of the
    process that makes the store. Existing locators and addresses keep their end. A new trash time
    also applies to the present content of the trash. A running server deletes by new times at once,
    but promises the old times until it is restarted.
    """
    from ebbtide.store.repositories.promises import times_of

    asked = {
        name: parse_period(text) if name == "trash_time" else parse_duration(text)
        for name, text in {
            "lease_ttl": lease_ttl,
            "trash_time": trash_time,
            "upload_ttl": upload_ttl,
            "prepare_ttl": prepare_ttl,
        }.items()
        if text is not None
    }
    times = times_of(cli.store.settings)
    shorter = [
        f"{name} {format_duration(times[name])} -> {format_duration(asked[name])}"
        for name in asked
        if asked[name] < times[name]
    ]
    if shorter:
        cli.output.say(f"shorter than the present promises: {', '.join(shorter)}")
        if not cli.may("shorten the promises?", yes=yes):
            return
    cli.store.promise(asked)
    times |= asked
    cli.output.answer(
        {name: format_duration(time) for name, time in times.items()},
        lambda: cli.output.fields((name, format_duration(time)) for name, time in times.items()),
    )
