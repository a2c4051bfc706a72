"""The sources of a collection's files: their options, and their values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import completing, uploading
from ebbtide.cli.command import Cli
from ebbtide.cli.progress import ProgressBar
from ebbtide.cli.trees import Links, read_tree
from ebbtide.errors import InvalidInput

if TYPE_CHECKING:
    from ebbtide.store.collections.collections import Collections
    from ebbtide.store.collections.contents import Source

FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE…", help="Files to upload, and directories with all their files."),
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
        autocompletion=completing.refs,
        help="Add the files of a branch, tag or commit, without a copy of their bytes.",
        show_default=False,
    ),
]
FromCollectionOption = Annotated[
    str | None,
    typer.Option(
        "--from-collection",
        metavar="COLLECTION",
        help="Add the files of another collection, by its path or id, without a copy of their "
        "bytes.",
        show_default=False,
    ),
]
FromVersionOption = Annotated[
    int | None,
    typer.Option(
        "--from-version",
        metavar="N",
        help="With --from-collection: number of a kept version.",
        show_default=False,
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
        show_default=False,
    ),
]


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
                found.append(Files(uploading.new_objects(tree.files, bar)))
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
