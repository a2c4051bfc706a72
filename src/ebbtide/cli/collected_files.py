"""The commands `collection files|get|put|rm|locators|diff`: the files of collections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.collections import (
    CollectionArgument,
    FilesArgument,
    FromCollectionOption,
    FromRefOption,
    FromVersionOption,
    IntoOption,
    LocatorsOption,
    PrefixOption,
    Sources,
    answer,
    warn,
)
from ebbtide.cli.collections import app as app
from ebbtide.cli.command import Cli, RepositoryArgument, command
from ebbtide.cli.commits import show_changes
from ebbtide.cli.files import show_listing
from ebbtide.cli.lifecycle import ExpiredOption
from ebbtide.cli.local_files import Links, LinksOption, save, save_all, write_out
from ebbtide.documents import document_of, instant
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.text import count_text, escaped, shown, size_text

if TYPE_CHECKING:
    from ebbtide.store.collections.collections import Collections
    from ebbtide.store.collections.reading import Collection
    from ebbtide.store.content.entries import Entry
    from ebbtide.store.objects.locators import Signed
    from ebbtide.store.page import Page

PAGE: int = 1000
STDOUT: str = "-"

VersionOption = Annotated[
    int | None,
    typer.Option("--version", metavar="N", help="Number of a kept version.", show_default=False),
]
KeepVersionOption = Annotated[
    bool, typer.Option("--keep-version", help="Keep the present content as a version.")
]


@command(app, "files")
def list_files(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only paths that begin with this.")
    ] = "",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="List all paths, not one directory level.")
    ] = False,
    version: VersionOption = None,
    include_expired: ExpiredOption = False,
    after: Annotated[
        str, typer.Option(metavar="PATH", help="List only paths that sort after this one.")
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The most lines to print.", show_default=False),
    ] = None,
) -> None:
    """List the files of a collection, even if its data is not kept."""
    collections = cli.repository(repository).collections
    found = collections.find(collection, include_expired=include_expired)
    warn(cli, found)

    def page(place: str, amount: int) -> Page[Entry]:
        return collections.files(
            found.collection_id,
            version=version,
            include_expired=include_expired,
            prefix=prefix,
            delimiter="" if recursive else "/",
            after=place,
            amount=amount,
        )

    show_listing(cli, page, after=after, limit=limit)


@command(app, "get")
def get(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Path of a file, or of a directory with a slash at its end. Default: all files.",
        ),
    ] = "",
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="File to write, or directory for several files. Default: stdout, for one file.",
            show_default=False,
        ),
    ] = None,
    version: VersionOption = None,
) -> None:
    """Download one file or all files, and check their bytes against their checksums.

    If not all paths can be files side by side, nothing is written, and the error names them.
    """
    collections = cli.repository(repository).collections
    found = collections.find(collection)
    warn(cli, found)
    if path and not path.endswith("/"):
        _get_one(cli, collections, found, path, to, version)
        return
    if to is None:
        raise InvalidInput("invalid_argument", "several files need a directory: name it with --to")
    _get_all(cli, collections, found, path, to, version)


def _get_one(
    cli: Cli,
    collections: Collections,
    found: Collection,
    path: str,
    to: Path | None,
    version: int | None,
) -> None:
    readable = collections.open(found.collection_id, path, version=version)
    if to is None:
        if cli.output.as_json:
            raise InvalidInput(
                "invalid_argument",
                "--json cannot print a file's bytes: write them to a file with --to",
            )
        write_out(readable.stream())
        return
    save(readable.stream(), to)
    entry = readable.entry
    cli.output.answer(
        document_of(entry) | {"file": str(to.resolve())},
        lambda: cli.output.line(f"wrote {to} ({size_text(entry.size_bytes)})"),
    )


def _get_all(
    cli: Cli,
    collections: Collections,
    found: Collection,
    prefix: str,
    to: Path,
    version: int | None,
) -> None:
    readables = list(collections.open_all(found.collection_id, version=version, prefix=prefix))
    if prefix and not readables:
        raise NotFound(
            "object_not_found", f"no path begins with {shown(prefix)} in {escaped(found.path)}"
        )
    names = [each.entry.path.removeprefix(prefix) for each in readables]
    size = sum(each.entry.size_bytes for each in readables)
    save_all(cli, to, names, [each.stream for each in readables], size)


@command(app, "put")
def put(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    files: FilesArgument = None,
    links: LinksOption = Links.REFUSE,
    into: IntoOption = "",
    from_ref: FromRefOption = None,
    from_collection: FromCollectionOption = None,
    from_version: FromVersionOption = None,
    prefix: PrefixOption = "",
    locators: LocatorsOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the whole content.")] = False,
    keep_version: KeepVersionOption = False,
) -> None:
    """Put files into a collection, from the same sources as 'collection create'.

    They replace files with the same paths.
    """
    from ebbtide.store.collections.contents import ContentChange

    collections = cli.repository(repository).collections
    found = collections.find(collection)
    sources = Sources(files, links, into, from_ref, from_collection, from_version, prefix, locators)
    with sources.opened(cli, collections) as opened:
        if not opened and not replace:
            raise InvalidInput("invalid_argument", "no files are given: name files or a source")
        changed = collections.update(
            found.collection_id,
            ContentChange(opened, replaces=replace),
            keep_version=keep_version,
        )
    _answer_changed(cli, changed)


@command(app, "rm")
def remove(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Paths of files, or of directories with a slash at their end.",
            show_default=False,
        ),
    ],
    keep_version: KeepVersionOption = False,
) -> None:
    """Remove files from a collection. Kept versions and other collections keep them."""
    from ebbtide.store.collections.contents import ContentChange

    collections = cli.repository(repository).collections
    found = collections.find(collection)
    changed = collections.update(
        found.collection_id, ContentChange(removed=paths), keep_version=keep_version
    )
    _answer_changed(cli, changed)


def _answer_changed(cli: Cli, changed: Collection) -> None:
    files = count_text(changed.file_count, "file")
    text = f"collection {escaped(changed.path)} has {files} now, {size_text(changed.size_bytes)}"
    answer(cli, changed, text)


@command(app, "locators")
def locators(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only paths that begin with this.")
    ] = "",
    version: VersionOption = None,
) -> None:
    """Print a locator for each file, as JSON for 'create --locators' and 'put --locators'.

    Until a locator ends, its holder can read the file, or add it to a collection.
    """
    collections = cli.repository(repository).collections
    found = collections.find(collection)
    warn(cli, found)
    signed = list(_signed(collections, found, prefix, version))
    document = {
        "locators": {each.entry.path: each.locator for each in signed},
        # The locators of a long list are made at different times. The earliest end counts.
        "expires_at": instant(min((each.expires_at for each in signed), default=None)),
    }
    cli.output.answer(document, lambda: cli.output.line(json.dumps(document, indent=2)))


def _signed(
    collections: Collections, found: Collection, prefix: str, version: int | None
) -> Iterator[Signed]:
    after: str | None = ""
    while after is not None:
        page = collections.locators(
            found.collection_id, version=version, prefix=prefix, after=after, amount=PAGE
        )
        yield from page.entries
        after = page.next_after


@command(app, "diff")
def diff(
    cli: Cli,
    repository: RepositoryArgument,
    left: CollectionArgument,
    right: Annotated[
        str,
        typer.Argument(
            metavar="OTHER", help="Path or id of the other collection.", show_default=False
        ),
    ],
    version: VersionOption = None,
    other_version: Annotated[
        int | None,
        typer.Option(
            "--other-version",
            metavar="N",
            help="Number of a kept version of the other collection.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        str,
        typer.Option(metavar="PREFIX", help="Only paths that begin with this.", show_default=False),
    ] = "",
) -> None:
    """Show the files that differ between two collections, even if data is not kept."""
    collections = cli.repository(repository).collections
    ours, theirs = collections.find(left), collections.find(right)
    changes = collections.diff(
        ours.collection_id,
        theirs.collection_id,
        left_version=version,
        right_version=other_version,
        prefix=prefix,
    )
    show_changes(cli, changes)
