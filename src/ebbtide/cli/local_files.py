"""Files of this machine: those that a command names, reads for upload, or writes objects to.

No file is left out silently: a file that cannot be read is an error. `--links` decides about
symbolic links, and they are counted.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from ebbtide.cli.command import Cli
from ebbtide.cli.output import answering
from ebbtide.cli.progress import ProgressBar
from ebbtide.errors import InvalidInput
from ebbtide.ids import new_id
from ebbtide.store.names import PATH_RULE, is_path
from ebbtide.text import count_text, escaped, shown, size_text

if TYPE_CHECKING:
    from ebbtide.store.objects.objects import Objects
    from ebbtide.store.staging.uploads import NewObject

IN_ONE_PIECE_BYTES_MAX: Final = 1024 * 1024
PIECE_BYTES: Final = 8 * 1024 * 1024
NAME_BYTES_MAX: Final = 255
"""The most bytes of a part of a path, on the file systems of Linux."""
PATH_BYTES_MAX: Final = 4095
"""The most bytes of a path that Linux accepts."""
SHOWN_MAX: Final = 5
BAD_NAMES_SHOWN_MAX: Final = 100
CHARACTERS_SHOWN: Final = 200


class Links(StrEnum):
    """The treatment of symbolic links below a directory."""

    REFUSE = "refuse"
    FOLLOW = "follow"
    SKIP = "skip"


LinksOption = Annotated[
    Links,
    typer.Option(
        "--links",
        help="Symbolic links below a directory: refuse them, follow them and store a copy of their "
        "targets, or skip them. A link that you name as FILE is followed.",
    ),
]


@dataclass(slots=True)
class DirectoryTree:
    """Files with the paths that they will have, and the numbers of symbolic links that were
    followed or skipped."""

    files: list[tuple[str, Path]] = field(default_factory=list)
    links_followed: int = 0
    links_skipped: int = 0

    def told(self) -> str:
        """Returns the text about the links, or "" if there are none."""
        parts = []
        if self.links_followed:
            parts.append(f"{count_text(self.links_followed, 'symbolic link')} followed")
        if self.links_skipped:
            parts.append(f"{count_text(self.links_skipped, 'symbolic link')} skipped")
        return ", ".join(parts)


def read_tree(sources: Iterable[Path], *, into: str, links: Links) -> DirectoryTree:
    """Returns the named files, and the files below named directories.

    A path consists of `into` and the file's name, or its path in the directory. Raises InvalidInput
    `invalid_argument` for a link if links are refused, and for a link that leads nowhere or to a
    directory around it. Raises the same for a path that is neither a file nor a directory. Raises
    OSError for a directory or file that cannot be read.
    """
    tree = DirectoryTree()
    for source in sources:
        if source.is_dir():
            _add_below(source, into, links, tree)
        else:
            _check_file(source)
            tree.files.append((into + source.name, source))
    tree.files.sort()
    return tree


def _add_below(source: Path, into: str, links: Links, tree: DirectoryTree) -> None:
    """Adds the files below a directory."""
    # Each entry has the identities of the directory itself and of the directories around it.
    waiting: list[tuple[Path, str, tuple[tuple[int, int], ...]]]
    waiting = [(source, into, (_identity(source),))]
    while waiting:
        directory, prefix, inside = waiting.pop()
        with os.scandir(directory) as found:
            entries = list(found)
        for entry in entries:
            path = Path(entry.path)
            if entry.is_symlink() and not _follows(path, links, tree):
                continue
            if not path.is_dir():
                _check_file(path)
                tree.files.append((prefix + entry.name, path))
                continue
            identity = _identity(path)
            if identity in inside:
                raise InvalidInput(
                    "invalid_argument", f"{path} leads to a directory around it: --links skip"
                )
            waiting.append((path, f"{prefix}{entry.name}/", (*inside, identity)))


def _identity(directory: Path) -> tuple[int, int]:
    """Returns the identity of a directory, which is the same for all paths to it."""
    found = directory.stat()
    return found.st_dev, found.st_ino


def _follows(link: Path, links: Links, tree: DirectoryTree) -> bool:
    """Whether a symbolic link is followed. Raises InvalidInput where links are refused."""
    if links is Links.REFUSE:
        raise InvalidInput(
            "invalid_argument",
            f"{link} is a symbolic link: --links follow stores its target, --links skip leaves out "
            "all links",
        )
    if links is Links.SKIP:
        tree.links_skipped += 1
        return False
    tree.links_followed += 1
    return True


def _check_file(path: Path) -> None:
    """Raises the errors of `read_tree` unless the path is a file that may be read."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        what = "is a broken link" if path.is_symlink() else "does not exist"
        raise InvalidInput("invalid_argument", f"{path} {what}") from None
    if not stat.S_ISREG(mode):
        raise InvalidInput("invalid_argument", f"{path} is neither a file nor a directory")
    path.open("rb").close()


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
    skip_bad_names: bool,
) -> None:
    """Uploads all files below `directory`. Each gets `prefix` and its path in the directory.

    Raises InvalidInput `invalid_path` with the names of all files that cannot be paths. With
    `skip_bad_names`, such files are left out and named.
    """
    if not directory.is_dir():
        raise InvalidInput("invalid_argument", f"{directory} is not a directory")
    prefix = prefix.strip("/")
    tree = read_tree([directory], into=f"{prefix}/" if prefix else "", links=links)
    bad = [path for path, _ in tree.files if not is_path(path)]
    if bad:
        listed = _listed(map(shown, bad), BAD_NAMES_SHOWN_MAX)
        told = f"{count_text(len(bad), 'name')} cannot be paths of objects ({PATH_RULE}): {listed}"
        if not skip_bad_names:
            raise InvalidInput(
                "invalid_path",
                f"{told}. Nothing was staged. --skip-bad-names leaves these files out",
                paths=[escaped(path) for path in bad],
            )
        cli.output.warn(f"left out: {told}")
        tree.files = [each for each in tree.files if is_path(each[0])]
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
        "bad_names_skipped": len(bad),
    }
    text = f"staged {count_text(totals.object_count, 'object')} on {branch}"
    text += f" ({size_text(totals.bytes_total)})"
    cli.output.answer(
        document, lambda: cli.output.line("; ".join(filter(None, [text, tree.told()])))
    )


def _listed(named: Iterable[str], shown_max: int) -> str:
    """Returns the texts in one line, of many the first ones."""
    texts = list(named)
    more = len(texts) - shown_max
    return "; ".join(texts[:shown_max]) + (f"; and {more} more" if more > 0 else "")


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


def save(pieces: Iterable[bytes], target: Path) -> None:
    """Writes a file. It has a temporary name until it is complete and checked. Raises OSError with
    the file's name."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    # A unique and short name: the file's own name can already have the greatest length.
    partial = target.with_name(f".{new_id()}.partial")
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        # The error of a full disk has no name, and the temporary name means nothing to the user.
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def save_all(
    cli: Cli,
    directory: Path,
    names: Sequence[str],
    pieces: Sequence[Callable[[], Iterable[bytes]]],
    bytes_total: int,
) -> None:
    """Writes a file below a directory for each name, and answers with their number and size. Raises
    as `files_below` and `save`."""
    # Checked before the first file is written: one impossible path stops the whole download.
    targets = files_below(directory, names)
    directory.mkdir(parents=True, exist_ok=True)
    with ProgressBar("downloading", total=len(targets), quiet=cli.output.as_json) as bar:
        for read, target in zip(pieces, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            save(read(), target)
            bar.advance()
    where = {"directory": str(directory.resolve())}
    files = f"{count_text(len(targets), 'file')} to {directory} ({size_text(bytes_total)})"
    cli.output.answer(
        where | {"file_count": len(targets), "bytes_total": bytes_total},
        lambda: cli.output.line(f"wrote {files}"),
    )


def write_out(pieces: Iterable[bytes]) -> None:
    """Writes the bytes to stdout."""
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            with answering():
                # Without a buffer (PYTHONUNBUFFERED), a write can be short: the next one says why.
                rest = rest[sys.stdout.buffer.write(rest) :]
    with answering():
        sys.stdout.buffer.flush()


def files_below(directory: Path, paths: Sequence[str]) -> list[Path]:
    """Returns the file below a directory for each object's path. Creates no file.

    Raises InvalidInput `invalid_path` if not all paths can be files there side by side. The message
    names the paths that cannot, and the detail `paths` has all of them.
    """
    known = set(paths)
    reasons: dict[str, str] = {}
    for path in paths:
        reason = _obstacle(directory, path, known)
        if reason is not None:
            reasons[path] = reason
    if reasons:
        named = (f"{shown(path)} {reason}" for path, reason in reasons.items())
        listed = _listed(named, SHOWN_MAX)
        raise InvalidInput(
            "invalid_path",
            f"not all paths can be files below {str(directory)[:CHARACTERS_SHOWN]}: "
            f"{listed}. Nothing was written. Download each of these files alone, under another "
            "name",
            paths=list(reasons),
        )
    return [directory.joinpath(*path.split("/")) for path in paths]


def _obstacle(directory: Path, path: str, known: set[str]) -> str | None:
    """Returns why a path cannot be a file below the directory beside the other paths, or None."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "has a part that cannot be the name of a file"
    if any(unicodedata.category(character) == "Cc" for character in path):
        # Such a name could change what a terminal shows, or end a line of a list of files.
        return "has a control character"
    if any(len(os.fsencode(part)) > NAME_BYTES_MAX for part in parts):
        return f"has a part of more than {NAME_BYTES_MAX} bytes"
    target = directory.joinpath(*parts)
    # A file is written with a temporary name first, which may be longer.
    if len(os.fsencode(target.parent.absolute())) + NAME_BYTES_MAX + 1 > PATH_BYTES_MAX:
        return "is too long"
    for outer in map(str, PurePosixPath(path).parents[:-1]):
        if outer in known:
            return f"lies in {shown(outer)}, which is a file itself"
    if target.is_dir():
        return "is a directory there"
    for place in target.parents[: len(parts)]:
        if place.exists() and not place.is_dir():
            return f"lies in {str(place)[:CHARACTERS_SHOWN]!r}, which is a file there"
    return None
