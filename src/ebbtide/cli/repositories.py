"""`repo`: repositories of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import documents
from ebbtide.cli.command import Cli, RepositoryArgument, YesOption, command, group
from ebbtide.cli.text import count_text, date_text

if TYPE_CHECKING:
    from ebbtide.store.repository import Repository

app = group("Make, list and look at repositories.")


@command(app, "create")
def create(
    cli: Cli,
    name: RepositoryArgument,
    storage_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Directory or URL of the storage root, which must be empty; without it, a place "
            "below the store's own storage.",
            show_default=False,
        ),
    ] = None,
    default_branch: Annotated[
        str, typer.Option(metavar="BRANCH", help="Name of the first branch.")
    ] = "main",
) -> None:
    """Make a repository."""
    made = cli.store.create_repository(
        name, storage_url=storage_url, default_branch=default_branch
    ).info

    def show() -> None:
        cli.output.line(f"repository {made.name} made at {made.storage_url}")
        cli.output.line(f"it keeps everything until 'ebbtide retention set {made.name}'")

    cli.output.answer(documents.repository(made), show)


@command(app, "list")
def list_all(cli: Cli) -> None:
    """List the repositories of the store."""
    found = cli.store.repositories()

    def show() -> None:
        cli.output.table(
            ["name", "default branch", "created", "storage"],
            [
                [info.name, info.default_branch, date_text(info.created_at), info.storage_url]
                for info in found
            ],
            none="no repositories: make one with 'ebbtide repo create NAME'",
        )

    cli.output.answer({"repositories": [documents.repository(info) for info in found]}, show)


@command(app, "show")
def show_one(cli: Cli, name: RepositoryArgument) -> None:
    """Show what a repository is and holds."""
    found = cli.repository(name)
    policy = found.retention.get()
    counts = _counts(found)

    def show() -> None:
        info = found.info
        cli.output.fields(
            [
                ("name", info.name),
                ("id", info.repository_id),
                ("storage", info.storage_url),
                ("default branch", info.default_branch),
                ("created", f"{date_text(info.created_at)} UTC"),
                *((name, count_text(count)) for name, count in counts.items()),
                ("policy", "none: nothing expires" if policy is None else "set"),
            ]
        )

    mapping = None if policy is None else policy.to_mapping()
    cli.output.answer(documents.repository(found.info) | counts | {"policy": mapping}, show)


def _counts(found: Repository) -> dict[str, int]:
    return {
        "branches": len(found.branches.list()),
        "tags": len(found.tags.list()),
        "holds": len(found.retention.holds()),
    }


@command(app, "adopt")
def adopt(cli: Cli, name: RepositoryArgument, yes: YesOption = False) -> None:
    """Declare that this database owns the repository's storage.

    For after a database was restored from a backup or copied. Writes and runs of any other
    database over the same storage are refused from then on, and what it wrote since is garbage
    to this one.
    """
    found = cli.repository(name)
    url = found.info.storage_url
    cli.output.say(
        f"{url} will belong to the database of this store alone.\n"
        "Commits and files that another database wrote there, and this one does not know, are\n"
        "garbage to it: the next run deletes them once they are older than the grace. If the\n"
        "other database is still in use, or newer than this one, stop here."
    )
    if cli.may(f"adopt {url}?", yes=yes):
        found.context.ownership.adopt()
        document = documents.repository(found.info) | {"adopted": True}
        cli.output.answer(document, lambda: cli.output.line(f"adopted {url}"))
