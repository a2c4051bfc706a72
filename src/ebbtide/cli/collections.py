"""The commands `collection`: named sets of files with a lifecycle, and the sources of their files.

Not for: the commands on their files (`collected_files`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import local_files, values
from ebbtide.cli.command import Cli, RepositoryArgument, YesOption, command, group
from ebbtide.cli.lifecycle import (
    AfterOption,
    BeforeOption,
    ExpiredOption,
    ExpiresAtOption,
    ExpiresInOption,
    NeverOption,
    StateOption,
    UniqueOption,
    changed_text,
    deleted_text,
    expiry_given,
    expiry_updated,
    filter_of,
    may_delete,
    warn_of_end,
)
from ebbtide.cli.local_files import Links, LinksOption, read_tree
from ebbtide.cli.progress import ProgressBar
from ebbtide.cli.projects import (
    DescriptionOption,
    NameOption,
    ProjectArgument,
    PropertyOption,
    UnsetOption,
    changed_properties,
    given_options,
    lifecycle_fields,
    property_fields,
)
from ebbtide.cli.values import parse_pairs
from ebbtide.documents import document_of
from ebbtide.errors import InvalidInput
from ebbtide.text import count_text, date_text, escaped, size_text

if TYPE_CHECKING:
    from ebbtide.store.collections.collections import Collections
    from ebbtide.store.collections.contents import Source
    from ebbtide.store.collections.queries import VersionRow
    from ebbtide.store.collections.reading import Collection
    from ebbtide.store.lifecycle import ListFilter


FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="Files to upload, and directories with all their files."),
]
IntoOption = Annotated[
    str,
    typer.Option("--into", metavar="PREFIX", help="Beginning of the new paths, such as reads/."),
]
FromRefOption = Annotated[
    str | None,
    typer.Option(
        "--from-ref",
        metavar="REF",
        autocompletion=values.refs,
        help="Add the files of a branch, tag or commit, without a copy of their bytes.",
    ),
]
FromCollectionOption = Annotated[
    str | None,
    typer.Option(
        "--from-collection",
        metavar="COLLECTION",
        help="Add the files of another collection, by its path or id, without a copy of their "
        "bytes.",
    ),
]
FromVersionOption = Annotated[
    int | None,
    typer.Option(
        "--from-version",
        metavar="N",
        help="With --from-collection: number of a kept version.",
    ),
]
PrefixOption = Annotated[
    str,
    typer.Option(
        "--prefix",
        metavar="PREFIX",
        help="With --from-ref or --from-collection: add only paths that begin with PREFIX, and "
        "remove PREFIX from them.",
    ),
]
LocatorsOption = Annotated[
    Path | None,
    typer.Option(
        "--locators",
        metavar="FILE",
        help="Add the files of the locators in a file, as 'collection locators' prints them.",
    ),
]

PAGE: int = 1000
app = group("Make, list, read, change, delete and restore collections.")
CollectionArgument = Annotated[
    str,
    typer.Argument(metavar="COLLECTION", help="Path of the collection, or its id."),
]
VersionArgument = Annotated[int, typer.Argument(metavar="N", help="Number of the version.")]
ReplicationOption = Annotated[
    int | None,
    typer.Option(
        "--replication-desired",
        metavar="N",
        help="0: runs delete the data; names, sizes and checksums stay.",
    ),
]
NameFilter = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="List only collections of this name."),
]
_WHEN = "--expires-in PERIOD or --expires-at DATE"


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of files on the command line."""

    files: list[Path] | None = field(default=None)
    links: Links = Links.REFUSE
    into: str = ""
    from_ref: str | None = None
    from_collection: str | None = None
    from_version: int | None = None
    prefix: str = ""
    locators: Path | None = None

    @contextmanager
    def opened(self, cli: Cli, collections: Collections) -> Iterator[list[Source]]:
        """Yields the sources, lowest precedence first, with a progress bar for uploads.

        Raises InvalidInput `invalid_argument`, and NotFound if another collection is missing.
        """
        from ebbtide.store.collections.contents import Files, FromCollection, FromRef, Located

        self._check()
        found: list[Source] = []
        if self.from_ref is not None:
            found.append(FromRef(self.from_ref, self.prefix, self.into))
        if self.from_collection is not None:
            other = collections.find(self.from_collection).collection_id
            found.append(FromCollection(other, self.from_version, self.prefix, self.into))
        if self.locators is not None:
            promised = read_locators(self.locators)
            found.append(Located({self.into + path: token for path, token in promised.items()}))
        tree = read_tree(self.files or [], into=self.into, links=self.links)
        with ProgressBar("uploading", total=len(tree.files), quiet=cli.output.as_json) as bar:
            if self.files:
                found.append(Files(local_files.new_objects(tree.files, bar)))
            yield found
        if tree.told():
            cli.output.say(tree.told())

    def _check(self) -> None:
        if self.from_version is not None and self.from_collection is None:
            raise InvalidInput("invalid_argument", "--from-version needs --from-collection")
        if self.prefix and self.from_ref is None and self.from_collection is None:
            raise InvalidInput("invalid_argument", "--prefix needs --from-ref or --from-collection")


def read_locators(file: Path) -> dict[str, str]:
    """Returns the locators in a file, by path. Raises InvalidInput `invalid_argument`."""
    how = f"{file} is not a file of locators: write one with 'ebbtide collection locators'"
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise InvalidInput("invalid_argument", how) from None
    found = document.get("locators") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not all(isinstance(token, str) for token in found.values()):
        raise InvalidInput("invalid_argument", how)
    return found


@command(app, "create")
def create(
    cli: Cli,
    repository: RepositoryArgument,
    path: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTION",
            help="Path of the new collection: the path of its project, and a name.",
        ),
    ],
    files: FilesArgument = None,
    links: LinksOption = Links.REFUSE,
    into: IntoOption = "",
    from_ref: FromRefOption = None,
    from_collection: FromCollectionOption = None,
    from_version: FromVersionOption = None,
    prefix: PrefixOption = "",
    locators: LocatorsOption = None,
    description: DescriptionOption = None,
    properties: PropertyOption = None,
    replication_desired: ReplicationOption = None,
    expires_in: ExpiresInOption = None,
    expires_at: ExpiresAtOption = None,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Make a collection, empty or with files.

    The files come from this machine, from commits, from other collections, from locators, or from
    several of these. If two files have the same path, a file of this machine wins over a locator's,
    then a collection's, then a commit's.
    """
    from ebbtide.store.collections.contents import ContentChange

    found = cli.repository(repository)
    above, _, name = path.rpartition("/")
    if not above:
        raise InvalidInput(
            "invalid_argument", f"a collection lies in a project: write PROJECT/{path[:60]}"
        )
    sources = Sources(files, links, into, from_ref, from_collection, from_version, prefix, locators)
    with sources.opened(cli, found.collections) as opened:
        made = found.collections.create(
            found.projects.find(above).project_id,
            name,
            ContentChange(opened),
            description=description or "",
            properties=parse_pairs(properties or [], option="--property"),
            expires_at=expiry_given(cli, expires_in, expires_at, options=_WHEN),
            ensure_unique_name=ensure_unique_name,
            **given_options(replication_desired=replication_desired),
        )
    answer(cli, made, f"collection {escaped(made.path)} made: {_size(made)}")


@command(app, "list")
def list_all(
    cli: Cli,
    repository: RepositoryArgument,
    project: ProjectArgument,
    name: NameFilter = None,
    include_expired: ExpiredOption = False,
    state: StateOption = None,
    expires_after: AfterOption = None,
    expires_before: BeforeOption = None,
) -> None:
    """List the collections of a project."""
    found = cli.repository(repository)
    listed = filter_of(
        cli,
        include_expired=include_expired,
        state=state,
        after=expires_after,
        before=expires_before,
    )
    expired = listed.include_expired
    place = found.projects.find(project, include_expired=expired)
    rows = list(_pages(found.collections, place.project_id, name, listed))

    def show() -> None:
        headers = ["name", "files", "size", "changed", "state", "expires", "keeps data"]
        cli.output.table(
            [*(["id"] if expired else []), *headers],
            [[*([each.collection_id] if expired else []), *_cells(each)] for each in rows],
            right=["files", "size"],
            none="no collections",
        )

    cli.output.answer({"collections": [document_of(each) for each in rows]}, show)


def _pages(
    collections: Collections, project_id: str, name: str | None, listed: ListFilter
) -> Iterable[Collection]:
    after = ("", "")
    while page := collections.page(project_id, after=after, amount=PAGE, name=name, listed=listed):
        yield from page
        after = (page[-1].name, page[-1].collection_id)


def _cells(found: Collection) -> list[str]:
    return [
        found.name,
        count_text(found.file_count),
        size_text(found.size_bytes),
        date_text(found.modified_at),
        found.state.value,
        date_text(found.ends_at),
        "yes" if found.replication_desired else "no",
    ]


@command(app, "show")
def show_one(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    include_expired: ExpiredOption = False,
) -> None:
    """Show a collection's state, size, dates and properties."""
    collections = cli.repository(repository).collections
    found = collections.find(collection, include_expired=include_expired)
    cli.output.answer(document_of(found), lambda: cli.output.fields(_fields(found)))
    warn(cli, found)


def _fields(found: Collection) -> list[tuple[str, str]]:
    keeps = "kept" if found.replication_desired else "not kept: only names, sizes and checksums"
    return [
        ("path", escaped(found.path)),
        ("id", found.collection_id),
        *lifecycle_fields(found.state, found.expires_at, found.ends_at),
        ("version", str(found.version)),
        ("content", _size(found)),
        ("data", keeps),
        ("replication desired", str(found.replication_desired)),
        ("hash", found.content_hash),
        ("created", f"{date_text(found.created_at)} UTC"),
        ("changed", f"{date_text(found.modified_at)} UTC"),
        ("description", escaped(found.description)),
        *property_fields(found.properties),
    ]


@command(app, "find-hash")
def find_hash(
    cli: Cli,
    repository: RepositoryArgument,
    content_hash: Annotated[str, typer.Argument(metavar="HASH", help="Hash of the content.")],
    include_expired: ExpiredOption = False,
) -> None:
    """Find a collection by the hash of its content.

    A persistent collection is preferred to an expiring one, and both to one in the trash.
    """
    collections = cli.repository(repository).collections
    found = collections.by_hash(content_hash, include_expired=include_expired)
    cli.output.answer(document_of(found), lambda: cli.output.fields(_fields(found)))
    warn(cli, found)


@command(app, "update")
def update(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    name: NameOption = None,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="PROJECT",
            help="Move it to this project: a path or an id.",
        ),
    ] = None,
    description: DescriptionOption = None,
    properties: PropertyOption = None,
    unset_property: UnsetOption = None,
    replication_desired: ReplicationOption = None,
    expires_in: ExpiresInOption = None,
    expires_at: ExpiresAtOption = None,
    never: NeverOption = False,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Change the given properties of a collection.

    A new date of expiry restores a collection from the trash, if the date is not past.
    """
    found = cli.repository(repository)
    before = found.collections.find(collection, include_expired=True)
    changed = found.collections.update(
        before.collection_id,
        **given_options(
            name=name,
            description=description,
            project_id=None if project is None else found.projects.find(project).project_id,
            replication_desired=replication_desired,
        ),
        **changed_properties(before.properties, properties, unset_property),
        expires_at=expiry_updated(cli, expires_in, expires_at, never=never),
        ensure_unique_name=ensure_unique_name,
    )
    answer(
        cli,
        changed,
        changed_text(f"collection {escaped(changed.path)}", changed.state, changed.ends_at),
    )
    if before.replication_desired and not changed.replication_desired:
        cli.output.warn(
            "the next collector run can delete its data for good; until then, "
            "--replication-desired 1 keeps it"
        )


@command(app, "versions")
def versions(cli: Cli, repository: RepositoryArgument, collection: CollectionArgument) -> None:
    """List the earlier versions that are kept, newest first."""
    collections = cli.repository(repository).collections
    found = collections.find(collection)
    kept = list(_versions(collections, found.collection_id))

    def show() -> None:
        cli.output.table(
            ["version", "files", "size", "changed", "name", "hash"],
            [
                [
                    str(row.version),
                    count_text(row.file_count),
                    size_text(row.size_bytes),
                    date_text(row.modified_at),
                    row.name,
                    row.content_hash,
                ]
                for row in kept
            ],
            right=["version", "files", "size"],
            none="no earlier version is kept",
        )

    cli.output.answer({"versions": [document_of(row) for row in kept]}, show)
    warn(cli, found)


def _versions(collections: Collections, collection_id: str) -> Iterable[VersionRow]:
    before: int | None = None
    while page := collections.versions(collection_id, before=before, amount=PAGE):
        yield from page
        before = page[-1].version


@command(app, "drop-version")
def drop_version(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    version: VersionArgument,
    yes: YesOption = False,
) -> None:
    """Drop an earlier version that is kept."""
    collections = cli.repository(repository).collections
    found = collections.find(collection)
    if not cli.may(f"drop version {version} of {escaped(found.path)} for good?", yes=yes):
        return
    collections.drop_version(found.collection_id, version)
    cli.output.answer(
        {"collection_id": found.collection_id, "version": version},
        lambda: cli.output.line(f"version {version} of {escaped(found.path)} dropped"),
    )


@command(app, "delete")
def delete(
    cli: Cli, repository: RepositoryArgument, collection: CollectionArgument, yes: YesOption = False
) -> None:
    """Move a collection to the trash.

    It can be restored until the trash time is over. The command asks only if the trash time is
    zero, because then nothing could restore the collection.
    """
    collections = cli.repository(repository).collections
    found = collections.find(collection)
    what = f"collection {escaped(found.path)}"
    if may_delete(cli, what, yes=yes):
        deleted = collections.delete(found.collection_id)
        restore = f"collection restore {repository} {deleted.collection_id}"
        answer(cli, deleted, deleted_text(cli, what, restore))


@command(app, "restore")
def restore(
    cli: Cli,
    repository: RepositoryArgument,
    collection: CollectionArgument,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Restore a collection from the trash."""
    collections = cli.repository(repository).collections
    found = collections.find(collection, include_expired=True)
    back = collections.restore(found.collection_id, ensure_unique_name=ensure_unique_name)
    answer(cli, back, f"collection {escaped(back.path)} is restored")


def answer(cli: Cli, found: Collection, text: str) -> None:
    """Answers with a collection. `text` is for people."""
    cli.output.answer(document_of(found), lambda: cli.output.line(text))


def warn(cli: Cli, found: Collection) -> None:
    """Warns on a terminal if the collection will expire."""
    warn_of_end(cli, f"collection {escaped(found.path)}", found.ends_at)


def _size(found: Collection) -> str:
    return f"{count_text(found.file_count, 'file')}, {size_text(found.size_bytes)}"
