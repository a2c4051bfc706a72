"""The commands `fs`: the objects of a repository, also those that others write to the storage."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import local_files
from ebbtide.cli.command import BranchArgument, Cli, RefArgument, RepositoryArgument, command, group
from ebbtide.cli.lifecycle import warn_of_expiry
from ebbtide.cli.local_files import Links, LinksOption, save, save_all, write_out
from ebbtide.cli.values import parse_pairs
from ebbtide.documents import document_of, instant
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.text import count_text, date_text, escaped, shown, size_text

if TYPE_CHECKING:
    from ebbtide.store.content.entries import Entry
    from ebbtide.store.objects.objects import Objects
    from ebbtide.store.page import Page


PAGE: int = 1000
MISSING_SHOWN: int = 5

app = group("Read, list, write and delete objects. Writes are staged until 'ebbtide commit'.")

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="Path of the object.")]

Row = tuple[int | None, datetime | None, str]
"""Size, time and path of an object; for a directory, only the path."""
ContentTypeOption = Annotated[
    str | None,
    typer.Option("--content-type", metavar="TYPE", help="Media type."),
]
MetaOption = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="NAME=VALUE", help="Metadata; repeatable."),
]


@command(app, "put")
def put(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="File to upload, - for stdin; with --recursive, a directory.",
        ),
    ],
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Path of the object; with --recursive, the beginning of all paths.",
        ),
    ],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Upload all files below a directory.")
    ] = False,
    content_type: Annotated[str | None, typer.Option(metavar="TYPE", help="Media type.")] = None,
    meta: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Metadata; repeatable."),
    ] = None,
    links: LinksOption = Links.REFUSE,
    skip_bad_names: Annotated[
        bool,
        typer.Option(
            "--skip-bad-names",
            help="With --recursive: leave out files whose names cannot be paths of objects.",
        ),
    ] = False,
) -> None:
    """Upload a file, or all files below a directory, and stage them on a branch."""
    metadata = parse_pairs(meta or [], option="--meta")
    objects = cli.repository(repository).objects
    local_files.require_source_first(source, path)
    if recursive:
        local_files.put_tree(
            cli,
            objects,
            branch,
            path,
            Path(source),
            content_type=content_type,
            metadata=metadata,
            links=links,
            skip_bad_names=skip_bad_names,
        )
        return
    with local_files.content_of(source) as content:
        staged = objects.put(branch, path, content, content_type=content_type, metadata=metadata)
    show_staged(cli, branch, staged)


@command(app, "get")
def get(
    cli: Cli,
    repository: RepositoryArgument,
    ref: RefArgument,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Path of the object; with --recursive, of a directory, '' for all objects.",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Where to write it; - for stdout. With --recursive, a directory."
        ),
    ] = "-",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Download all objects below a directory.")
    ] = False,
) -> None:
    """Download an object, or all objects below a directory, and check their checksums."""
    warn_of_expiry(cli, repository, ref)
    objects = cli.repository(repository).objects
    if recursive:
        _get_below(cli, objects, ref, path, destination)
        return
    if destination == "-":
        _write_stdout(cli, objects, ref, path)
        return
    found = objects.stat(ref, path)
    target = Path(destination)
    save(objects.stream(ref, path), target)
    cli.output.answer(
        document_of(found) | {"file": str(target.resolve())},
        lambda: cli.output.line(f"wrote {target} ({size_text(found.size_bytes)})"),
    )


def _get_below(cli: Cli, objects: Objects, ref: str, path: str, destination: str) -> None:
    if destination == "-":
        raise InvalidInput("invalid_argument", "--recursive needs a directory to write to")
    prefix = path if path.endswith("/") or not path else f"{path}/"
    found = list(objects.walk(ref, prefix=prefix))
    if not found:
        raise NotFound("object_not_found", f"there is no object below {shown(prefix)} in {ref!r}")
    names = [each.path.removeprefix(prefix) for each in found]
    pieces = [partial(objects.stream, ref, each.path) for each in found]
    save_all(cli, Path(destination), names, pieces, sum(each.size_bytes for each in found))


@command(app, "cat")
def cat(cli: Cli, repository: RepositoryArgument, ref: RefArgument, path: PathArgument) -> None:
    """Write an object's bytes to stdout."""
    warn_of_expiry(cli, repository, ref)
    _write_stdout(cli, cli.repository(repository).objects, ref, path)


def _write_stdout(cli: Cli, objects: Objects, ref: str, path: str) -> None:
    if cli.output.as_json:
        raise InvalidInput(
            "invalid_argument",
            "--json cannot print an object's bytes: use 'fs get' with a file, or 'fs stat'",
        )
    write_out(objects.stream(ref, path))


@command(app, "ls")
def list_objects(
    cli: Cli,
    repository: RepositoryArgument,
    ref: RefArgument,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only paths that begin with this.")
    ] = "",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="List all paths, not one directory level.")
    ] = False,
    after: Annotated[
        str, typer.Option(metavar="PATH", help="List only paths that sort after this one.")
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The most lines to print."),
    ] = None,
) -> None:
    """List objects: of a branch with its staged changes, or of any commit."""
    warn_of_expiry(cli, repository, ref)
    objects = cli.repository(repository).objects
    delimiter = "" if recursive else "/"

    def page(place: str, amount: int) -> Page[Entry]:
        return objects.list(ref, prefix=prefix, delimiter=delimiter, after=place, amount=amount)

    show_listing(cli, page, after=after, limit=limit)


def show_listing(
    cli: Cli, page: Callable[[str, int], Page[Entry]], *, after: str, limit: int | None
) -> None:
    """Answers with a listing. `page` returns a number of entries after a path."""
    found = _listed(page, after, limit=limit)
    if not cli.output.as_json:
        # Printed one by one, because there can be millions.
        for size, mtime, name in found:
            size_shown = "" if size is None else size_text(size)
            cli.output.line(f"{size_shown:>10}  {date_text(mtime):16}  {escaped(name)}")
        return
    rows = [
        {"path": name, "kind": "directory"}
        if size is None
        else {
            "path": name,
            "kind": "object",
            "size_bytes": size,
            "mtime": instant(mtime),
        }
        for size, mtime, name in found
    ]
    cli.output.answer({"entries": rows}, lambda: None)


def _listed(
    page_of: Callable[[str, int], Page[Entry]], after: str, *, limit: int | None
) -> Iterator[Row]:
    next_after: str | None = after
    remaining = limit
    while next_after is not None and remaining != 0:
        page = page_of(next_after, PAGE if remaining is None else min(PAGE, remaining))
        rows: list[Row] = [(None, None, name) for name in page.common_prefixes]
        rows += [(entry.size_bytes, entry.mtime, entry.path) for entry in page.entries]
        yield from sorted(rows, key=lambda row: row[2])
        remaining = None if remaining is None else remaining - len(rows)
        next_after = page.next_after


@command(app, "stat")
def stat(cli: Cli, repository: RepositoryArgument, ref: RefArgument, path: PathArgument) -> None:
    """Show an object's size, checksum, address and metadata."""
    warn_of_expiry(cli, repository, ref)
    found = cli.repository(repository).objects.stat(ref, path)
    cli.output.answer(document_of(found), lambda: cli.output.fields(_fields(found)))


def _fields(found: Entry) -> list[tuple[str, str]]:
    return [
        ("path", escaped(found.path)),
        ("size", f"{size_text(found.size_bytes)} ({count_text(found.size_bytes, 'byte')})"),
        ("checksum", found.checksum),
        ("modified", f"{date_text(found.mtime)} UTC"),
        ("content type", escaped(found.content_type or "")),
        ("address", found.address),
        *((escaped(name), escaped(value)) for name, value in sorted(found.metadata.items())),
    ]


@command(app, "rm")
def remove(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Paths of the objects."),
    ],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="PATH is a directory: all objects in it.")
    ] = False,
) -> None:
    """Stage the deletion of objects. Earlier commits keep them."""
    objects = cli.repository(repository).objects
    chosen = list(paths)
    if recursive:
        chosen = [found for path in paths for found in _within(objects, branch, path)]
    missing = objects.delete_many(branch, chosen)
    deleted_count = len(set(chosen)) - len(missing)
    if missing or not chosen:
        listed = ", ".join(shown(path) for path in (missing or paths)[:MISSING_SHOWN])
        raise NotFound(
            "object_not_found",
            f"there is no object {listed} on {branch!r}; {count_text(deleted_count)} deleted",
            missing=missing,
        )
    cli.output.answer(
        {"branch": branch, "deleted_count": deleted_count},
        lambda: cli.output.line(
            f"staged the deletion of {count_text(deleted_count, 'object')} on {branch}"
        ),
    )


def _within(objects: Objects, branch: str, path: str) -> Iterator[str]:
    """Yields the paths of a directory, and the path itself if it is an object. An empty path is the
    whole branch. A slash ends the name of the directory: `data/r` has nothing of `data/raw/`."""
    directory = path if path.endswith("/") or not path else f"{path}/"
    if directory != path:
        first = next(iter(objects.walk(branch, prefix=path)), None)
        if first is not None and first.path == path:
            yield path
    yield from (found.path for found in objects.walk(branch, prefix=directory))


@command(app, "cp")
def copy(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Path to copy.")],
    destination: Annotated[str, typer.Argument(metavar="DEST", help="Path of the copy.")],
    from_ref: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REF",
            help="Branch, tag or commit to copy from. Default: the branch itself.",
        ),
    ] = None,
) -> None:
    """Copy an object to a path of a branch."""
    objects = cli.repository(repository).objects
    staged = objects.copy(branch, destination, from_ref or branch, source)
    show_staged(cli, branch, staged)


@command(app, "mv")
def move(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Path to move.")],
    destination: Annotated[str, typer.Argument(metavar="DEST", help="Path to move it to.")],
) -> None:
    """Move an object to another path of its branch. It replaces an object there."""
    moved = cli.repository(repository).objects.move(branch, destination, source)
    show_staged(cli, branch, moved)


def show_staged(cli: Cli, branch: str, staged: Entry) -> None:
    """Answers with an entry that was just staged."""
    cli.output.answer(
        document_of(staged),
        lambda: cli.output.line(
            f"staged {escaped(staged.path)} on {branch} ({size_text(staged.size_bytes)})"
        ),
    )


@command(app, "address")
def address(
    cli: Cli, repository: RepositoryArgument, branch: BranchArgument, path: PathArgument
) -> None:
    """Get an address for a direct upload, and a token to link the object with."""
    found = cli.repository(repository).addresses.get(branch, path)

    def show() -> None:
        line = cli.output.line
        line(f"upload to  {found.presigned_url or found.url}")
        line(f"token      {found.token}")
        line(f"good until {date_text(found.expires_at)}")
        line(f"then: ebbtide fs link {repository} {branch} {path} TOKEN")

    document = {
        "branch": found.branch,
        "path": found.path,
        "address": found.address,
        "url": found.url,
        "presigned_url": found.presigned_url,
        "token": found.token,
        "expires_at": instant(found.expires_at),
    }
    cli.output.answer(document, show)


@command(app, "link")
def link(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    path: PathArgument,
    token: Annotated[
        str,
        typer.Argument(metavar="TOKEN", help="The token that came with the address."),
    ],
    size: Annotated[
        int | None,
        typer.Option("--size", metavar="BYTES", help="Expected size."),
    ] = None,
    checksum: Annotated[
        str | None,
        typer.Option("--checksum", metavar="SHA256", help="Expected checksum."),
    ] = None,
    content_type: ContentTypeOption = None,
    meta: MetaOption = None,
) -> None:
    """Stage an object that was uploaded to an address. A token can be used once."""
    staged = cli.repository(repository).addresses.link(
        branch,
        path,
        token,
        size_bytes=size,
        checksum=checksum,
        content_type=content_type,
        metadata=parse_pairs(meta or [], option="--meta"),
    )
    show_staged(cli, branch, staged)


@command(app, "stage")
def stage(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="URL of the object, outside the roots of all repositories.",
        ),
    ],
    path: PathArgument,
    size: Annotated[int, typer.Option("--size", metavar="BYTES", help="Size of the object.")],
    checksum: Annotated[
        str, typer.Option("--checksum", metavar="TEXT", help="Checksum of the object, of any kind.")
    ] = "",
    content_type: ContentTypeOption = None,
    meta: MetaOption = None,
) -> None:
    """Stage an object that stays where it is, outside the storage root. It is never collected."""
    if "://" in path and "://" not in url:
        raise InvalidInput(
            "invalid_argument",
            f"{shown(url)} is not a URL: the URL comes first, then the path on the branch, as in: "
            f"ebbtide fs stage REPO BRANCH {shlex.join([path, url])}",
        )
    staged = cli.repository(repository).addresses.stage(
        branch,
        path,
        url,
        size_bytes=size,
        checksum=checksum,
        content_type=content_type,
        metadata=parse_pairs(meta or [], option="--meta"),
    )
    show_staged(cli, branch, staged)
