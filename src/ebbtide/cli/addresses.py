"""The commands `fs address`, `fs link`, `fs stage`: objects that others write to the storage."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from ebbtide.cli import documents
from ebbtide.cli.command import BranchArgument, Cli, RepositoryArgument, command
from ebbtide.cli.files import PathArgument, show_staged
from ebbtide.cli.files import app as app
from ebbtide.cli.parsing import parse_pairs
from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.text import date_text

ContentTypeOption = Annotated[
    str | None,
    typer.Option("--content-type", metavar="TYPE", help="Media type.", show_default=False),
]
MetaOption = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="NAME=VALUE", help="Metadata; repeatable.", show_default=False),
]


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
        "expires_at": documents.instant(found.expires_at),
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
        typer.Argument(
            metavar="TOKEN", help="The token that came with the address.", show_default=False
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option("--size", metavar="BYTES", help="Expected size.", show_default=False),
    ] = None,
    checksum: Annotated[
        str | None,
        typer.Option("--checksum", metavar="SHA256", help="Expected checksum.", show_default=False),
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
            show_default=False,
        ),
    ],
    path: PathArgument,
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", help="Size of the object.", show_default=False)
    ],
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
