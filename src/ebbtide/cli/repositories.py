"""The commands `repo`: repositories of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import values
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
from ebbtide.documents import document_of
from ebbtide.text import count_text, date_text

if TYPE_CHECKING:
    from ebbtide.store.repository import Repository

app = group("Make, list, delete and restore repositories.")

OldRepositoryArgument = Annotated[
    str,
    typer.Argument(
        metavar="REPO",
        help="Name or id of the repository.",
        autocompletion=values.repositories,
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
            help="Directory or URL of the storage root, which must be empty. Default: a place "
            "below the store's own storage.",
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

    cli.output.answer(document_of(found), show)


@command(app, "list")
def list_all(
    cli: Cli,
    include_expired: ExpiredOption = False,
    gone: Annotated[
        bool,
        typer.Option(
            "--gone", help="List only gone repositories, which 'gc run' can collect as a whole."
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

    cli.output.answer({"repositories": [document_of(each) for each in found]}, show)


@command(app, "expire")
def expire(
    cli: Cli,
    name: OldRepositoryArgument,
    period: InOption = None,
    date: AtOption = None,
    never: NeverOption = False,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Set when a repository goes to the trash by itself.

    If the repository is in the trash, this restores it.
    """
    changed = cli.store.catalog.set_expiry(
        name,
        expiry_changed(cli, period, date, never=never),
        ensure_unique_name=ensure_unique_name,
    )
    text = f"repository {changed.info.name} {expiry_text(changed.info.expires_at)}"
    cli.output.answer(document_of(changed), lambda: cli.output.line(text))


@command(app, "delete")
def delete(cli: Cli, name: OldRepositoryArgument, yes: YesOption = False) -> None:
    """Move a repository to the trash.

    It can be restored until the trash time is over. Its name is free at once. Its storage stays
    reserved for it until it is gone and 'gc run' has collected all of it. The command asks only if
    the trash time is zero, because then nothing could restore the repository.
    """
    if not may_delete(cli, f"repository {name}", yes=yes):
        return
    deleted = cli.store.catalog.delete(name)
    info = deleted.info
    restore = f"repo restore {info.repository_id}"

    def show() -> None:
        cli.output.line(deleted_text(cli, f"repository {info.name}", restore))
        cli.output.line(
            "its storage stays until the repository is gone and 'ebbtide gc run "
            f"{info.repository_id}' has deleted it"
        )

    cli.output.answer(document_of(deleted), show)


@command(app, "restore")
def restore(
    cli: Cli, name: OldRepositoryArgument, ensure_unique_name: UniqueOption = False
) -> None:
    """Restore a repository from the trash, with all of its content.

    If several repositories in the trash have its name, use its id. 'repo list --include-expired'
    shows ids.
    """
    restored = cli.store.catalog.restore(name, ensure_unique_name=ensure_unique_name)
    text = f"repository {restored.info.name} is restored"
    cli.output.answer(document_of(restored), lambda: cli.output.line(text))


@command(app, "show")
def show_one(cli: Cli, name: RepositoryArgument) -> None:
    """Show a repository, and how many branches, tags and holds it has."""
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
    cli.output.answer(document_of(catalogued) | counts | {"policy": mapping}, show)


def _counts(found: Repository) -> dict[str, int]:
    return {
        "branches": len(found.branches.list()),
        "tags": len(found.tags.list()),
        "holds": len(found.retention.holds()),
    }


@command(app, "adopt")
def adopt(cli: Cli, name: RepositoryArgument, yes: YesOption = False) -> None:
    """Declare that this database owns the repository's storage.

    Use it after a database was restored from a backup, or copied. From then on, writes and runs of
    any other database over the same storage are refused. Files that another database wrote after
    the backup or copy count as garbage.
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
        document = document_of(cli.store.catalog.get(name)) | {"adopted": True}
        cli.output.answer(document, lambda: cli.output.line(f"adopted {url}"))
