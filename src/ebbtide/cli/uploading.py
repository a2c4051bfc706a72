"""Reads files of this machine for upload: one file, stdin, or a directory tree."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ebbtide.cli.command import Cli
from ebbtide.cli.progress import ProgressBar
from ebbtide.cli.trees import Links, read_tree
from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.text import count_text, size_text

if TYPE_CHECKING:
    from ebbtide.store.objects.objects import Objects
    from ebbtide.store.staging.uploads import NewObject

IN_ONE_PIECE_BYTES_MAX: Final = 1024 * 1024
PIECE_BYTES: Final = 8 * 1024 * 1024


def content_of(source: str) -> AbstractContextManager[BinaryIO]:
    """Opens a file, or stdin for `-`. Raises InvalidInput `invalid_argument` for a directory."""
    if source == "-":
        return nullcontext(sys.stdin.buffer)
    if Path(source).is_dir():
        raise InvalidInput(
            "invalid_argument", f"{source} is a directory: name a file, or add --recursive"
        )
    return Path(source).open("rb")


def require_source_first(source: str, path: str) -> None:
    """Raises InvalidInput `invalid_argument` if the file stands where the path on the branch
    belongs."""
    if source == "-" or Path(source).exists():
        return
    if path == "-" or Path(path).exists():
        raise InvalidInput(
            "invalid_argument",
            f"there is no file {shown(source)}: the file comes first, then its path on the branch, "
            f"as in: ebbtide fs put REPO BRANCH {shlex.join([path, source])}",
        )


def put_tree(
    cli: Cli,
    objects: Objects,
    branch: str,
    prefix: str,
    directory: Path,
    *,
    content_type: str | None,
    metadata: Mapping[str, str],
    links: Links,
) -> None:
    """Uploads all files below `directory`. Each gets `prefix` and its path in the directory."""
    if not directory.is_dir():
        raise InvalidInput("invalid_argument", f"{directory} is not a directory")
    prefix = prefix.strip("/")
    tree = read_tree([directory], into=f"{prefix}/" if prefix else "", links=links)
    with ProgressBar("uploading", total=len(tree.files), quiet=cli.output.as_json) as bar:
        items = new_objects(tree.files, bar, content_type=content_type, metadata=metadata)
        totals = objects.put_many(branch, items)
    document = {
        "branch": branch,
        "prefix": prefix,
        "object_count": totals.object_count,
        "bytes_total": totals.bytes_total,
        "links_followed": tree.links_followed,
        "links_skipped": tree.links_skipped,
    }
    text = f"staged {count_text(totals.object_count, 'object')} on {branch}"
    text += f" ({size_text(totals.bytes_total)})"
    cli.output.answer(
        document, lambda: cli.output.line("; ".join(filter(None, [text, tree.told()])))
    )


def new_objects(
    files: Iterable[tuple[str, Path]],
    bar: ProgressBar,
    *,
    content_type: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Iterator[NewObject]:
    """Yields files as objects. A large file is read when its data is used."""
    from ebbtide.store.staging.uploads import NewObject

    for path, file in files:
        yield NewObject(path, _data(file), content_type, metadata or {})
        bar.advance()


def _data(file: Path) -> bytes | Iterator[bytes]:
    """Returns a small file as bytes, which need one request, and a large one as pieces."""
    if file.stat().st_size <= IN_ONE_PIECE_BYTES_MAX:
        return file.read_bytes()
    return _pieces(file)


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            yield piece
