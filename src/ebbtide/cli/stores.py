"""`init`: a store is made, or brought to this program's version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.command import Cli, command
from ebbtide.cli.keys import pair_document, show_pair


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    command(app, "init")(init)


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
