"""`repo`: repositories of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import completing, documents
from ebbtide.cli.command import Cli, RepositoryArgument, YesOption, command, group
from ebbtide.cli.lifecycle import (
    AtOption,
    ExpiredOption,
    ExpiresAtOption,
    ExpiresInOption,
    InOption,
    NeverOption,
    UniqueOption,
    deleted_text,
    expiry_changed,
    expiry_given,
    expiry_text,
    may_delete,
)
from ebbtide.cli.text import count_text, date_text

if TYPE_CHECKING:
    from ebbtide.store.repository import Repository

app = group("Make, list, delete and restore repositories.")

OldRepositoryArgument = Annotated[
    str,
    typer.Argument(
        metavar="REPO",
        help="Name or id of the repository.",
        show_default=False,
        autocompletion=completing.repositories,
    ),
]


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
    expires_in: ExpiresInOption = None,
    expires_at: ExpiresAtOption = None,
) -> None:
    """Make a repository."""
    expires = expiry_given(cli, expires_in, expires_at, options="--expires-in and --expires-at")
    made = cli.store.create_repository(
        name, storage_url=storage_url, default_branch=default_branch, expires_at=expires
    ).info
    found = cli.store.catalog.get(made.repository_id, include_expired=True)

    def show() -> None:
        cli.output.line(f"repository {made.name} made at {made.storage_url}")
        cli.output.line(f"it keeps everything until 'ebbtide retention set {made.name}'")
        if made.expires_at is not None:
            cli.output.line(f"it {expiry_text(made.expires_at)}")

    cli.output.answer(documents.repository(found), show)


@command(app, "list")
def list_all(
    cli: Cli,
    include_expired: ExpiredOption = False,
    gone: Annotated[
        bool,
        typer.Option(
            "--gone", help="Show those alone that nothing brings back, for 'gc run' to collect."
        ),
    ] = False,
) -> None:
    """List the repositories of the store."""
    catalog = cli.store.catalog
    found = catalog.gone() if gone else catalog.list(include_expired=include_expired)
    ids = gone or include_expired

    def show() -> None:
        cli.output.table(
            ["name", "default branch", "created", "state", "expires", "storage"] + ["id"] * ids,
            [
                [
                    info.name,
                    info.default_branch,
                    date_text(info.created_at),
                    each.state.value,
                    date_text(info.expires_at),
                    info.storage_url,
                    *([info.repository_id] * ids),
                ]
                for each in found
                for info in (each.info,)
            ],
            none="no repositories: make one with 'ebbtide repo create NAME'",
        )

    cli.output.answer({"repositories": [documents.repository(each) for each in found]}, show)


@command(app, "expire")
def expire(
    cli: Cli,
    name: OldRepositoryArgument,
    period: InOption = None,
    date: AtOption = None,
    never: NeverOption = False,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Say when a repository goes to the trash by itself. One in the trash comes back."""
    changed = cli.store.catalog.set_expiry(
        name,
        expiry_changed(cli, period, date, never=never),
        ensure_unique_name=ensure_unique_name,
    )
    text = f"repository {changed.info.name} {expiry_text(changed.info.expires_at)}"
    cli.output.answer(documents.repository(changed), lambda: cli.output.line(text))


@command(app, "delete")
def delete(cli: Cli, name: OldRepositoryArgument, yes: YesOption = False) -> None:
    """Put a repository in the trash, from which it can be restored for the trash time.

    Its name is free at once. Its storage stays as it is, and its own, until it is gone and 'gc run'
    has collected all of it. Asks only where the trash time is zero, so that nothing could bring it
    back.
    """
    if not may_delete(cli, f"repository {name}", yes=yes):
        return
    deleted = cli.store.catalog.delete(name)
    info = deleted.info
    restore = f"repo restore {info.repository_id}"

    def show() -> None:
        cli.output.line(deleted_text(cli, f"repository {info.name}", restore))
        cli.output.line(
            f"its storage stays until it is gone and 'ebbtide gc run {info.repository_id}'"
        )

    cli.output.answer(documents.repository(deleted), show)


@command(app, "restore")
def restore(
    cli: Cli, name: OldRepositoryArgument, ensure_unique_name: UniqueOption = False
) -> None:
    """Bring a deleted repository back, with all that it held.

    By its name where no other in the trash bears it, else by its id, which 'repo list
    --include-expired' shows.
    """
    restored = cli.store.catalog.restore(name, ensure_unique_name=ensure_unique_name)
    text = f"repository {restored.info.name} is back"
    cli.output.answer(documents.repository(restored), lambda: cli.output.line(text))


@command(app, "show")
def show_one(cli: Cli, name: RepositoryArgument) -> None:
    """Show what a repository is and holds."""
    found = cli.repository(name)
    catalogued = cli.store.catalog.get(found.info.repository_id)
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
                (
                    "expires",
                    "never" if info.expires_at is None else f"{date_text(info.expires_at)} UTC",
                ),
                *((name, count_text(count)) for name, count in counts.items()),
                ("policy", "none: nothing expires" if policy is None else "set"),
            ]
        )

    mapping = None if policy is None else policy.to_mapping()
    cli.output.answer(documents.repository(catalogued) | counts | {"policy": mapping}, show)


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
        document = documents.repository(cli.store.catalog.get(name)) | {"adopted": True}
        cli.output.answer(document, lambda: cli.output.line(f"adopted {url}"))
