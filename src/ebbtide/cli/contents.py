"""Where the files of a collection come from: the options, and what they mean."""

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
from ebbtide.cli.progress import Bar
from ebbtide.cli.trees import Links, read_tree
from ebbtide.errors import InvalidInput

if TYPE_CHECKING:
    from ebbtide.store.collections import Collections
    from ebbtide.store.contents import Source

FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE…", help="Files to upload, and directories with all below them."),
]
IntoOption = Annotated[
    str, typer.Option("--into", metavar="PREFIX", help="What paths begin with, such as reads/.")
]
FromRefOption = Annotated[
    str | None,
    typer.Option(
        "--from-ref",
        metavar="REF",
        autocompletion=completing.refs,
        help="Take what a branch, tag or commit has; no bytes are moved.",
        show_default=False,
    ),
]
FromCollectionOption = Annotated[
    str | None,
    typer.Option(
        "--from-collection",
        metavar="COLLECTION",
        help="Take what another collection has, by its path or id; no bytes are moved.",
        show_default=False,
    ),
]
FromVersionOption = Annotated[
    int | None,
    typer.Option(
        "--from-version",
        metavar="N",
        help="With --from-collection, a version of it.",
        show_default=False,
    ),
]
PrefixOption = Annotated[
    str,
    typer.Option(
        "--prefix",
        metavar="PREFIX",
        help="Of --from-ref and --from-collection, only what is below it, and without it.",
    ),
]
LocatorsOption = Annotated[
    Path | None,
    typer.Option(
        "--locators",
        metavar="FILE",
        help="Take what the locators in a file promise, as 'collection locators' writes it.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Sources:
    """What the command line says of where files come from."""

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
        """The sources, with a bar for what is uploaded while they are read.

        Raises InvalidInput `invalid_argument`, NotFound for another collection that is not there.
        """
        from ebbtide.store.contents import Files, FromCollection, FromRef, Located

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
        with Bar("uploading", total=len(tree.files), quiet=cli.output.as_json) as bar:
            if self.files:
                found.append(Files(uploading.new_objects(tree.files, bar)))
            yield found
        if tree.told():
            cli.output.say(tree.told())

    def _check(self) -> None:
        if self.from_version is not None and self.from_collection is None:
            raise InvalidInput("invalid_argument", "--from-version goes with --from-collection")
        if self.prefix and self.from_ref is None and self.from_collection is None:
            raise InvalidInput(
                "invalid_argument", "--prefix goes with --from-ref or --from-collection"
            )


def read_locators(file: Path) -> dict[str, str]:
    """The locators of a file by path. Raises InvalidInput `invalid_argument`."""
    how = f"{file} is no file of locators: write one with 'ebbtide collection locators'"
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise InvalidInput("invalid_argument", how) from None
    found = document.get("locators") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not all(isinstance(token, str) for token in found.values()):
        raise InvalidInput("invalid_argument", how)
    return found
