"""A directory as an object storage. Not for paths that users give: `open_storage` takes these."""

from __future__ import annotations

import builtins
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound, disk_full
from ebbtide.model import EPOCH
from ebbtide.storage import base, directories
from ebbtide.storage.base import Content, DeleteOutcome, ObjectInfo, Outcome, Retained
from ebbtide.storage.directories import in_parallel, list_directory, list_sizes, unlink
from ebbtide.text import shown

TEMPORARY_SUFFIX: Final = "#[0-9]+"
"""A regular expression: the suffix that a temporary file adds to the name of the object that it is
written for. object_store's own local storage uses the same suffix."""

_TEMPORARY: Final = re.compile(f".*{TEMPORARY_SUFFIX}", re.DOTALL)
_KEEP_DEPTH: Final = 1
_READ_BYTES: Final = 1024 * 1024
"""The most bytes of a piece of a file. Readers often hold two pieces at a time, and longer ones are
not faster."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """The directory `directory`, made at the first write.

    A write goes to a temporary file beside the object (`name#<digits>`), which is flushed to disk.
    One step then gives it the object's name, and the directories are flushed. After a crash, either
    the old or the new object is there, perhaps with a temporary file. After `put` has returned, the
    new object is there. object_store has no option to flush files and cannot promise this;
    therefore this class uses plain files.

    Symbolic links below the directory are never followed. There is no object behind a link, a
    listing reports it as not regular, and a write or delete through it is refused.
    """

    directory: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", str(Path(self.directory).resolve()))

    @property
    def url(self) -> str:
        """The `file://` URL of the real path."""
        return Path(self.directory).as_uri()

    @property
    def shared_between_processes(self) -> bool:
        """True: all processes use the same files."""
        return True

    def get(self, address: str) -> bytes:
        """Returns the whole object. Raises NotFound (`object_not_found`)."""
        with _translated(address, reading=True), os.fdopen(self._open(address), "rb") as file:
            return file.read()

    def get_cached(self, address: str, size_bytes: int) -> bytes | None:
        """Returns the whole object of that size if the system has it in memory. Else None, without
        a wait for the disk: also for other sizes, and where the file system cannot tell. Raises
        NotFound (`object_not_found`)."""
        with _translated(address, reading=True):
            descriptor = self._open(address)
            try:
                # One byte more shows whether the file is longer.
                buffer = bytearray(size_bytes + 1)
                count = os.preadv(descriptor, [buffer], 0, os.RWF_NOWAIT)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                    return None
                raise
            finally:
                os.close(descriptor)
        return bytes(buffer[:count]) if count == size_bytes else None

    def get_versioned(self, address: str) -> tuple[bytes, str]:
        """Returns the whole object and its version, for `replace`."""
        *parents, name = base.split_address(address)
        with (
            _translated(address, reading=True),
            directories.opened(self.directory, parents) as parent,
        ):
            return _versioned(parent, name)

    def stream(
        self, address: str, *, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Iterator[bytes]:
        """Returns the bytes from `start` to before `end`, in pieces of bounded size. Files have no
        ETags, so that none matches."""
        if self.head(address) is None:
            raise base.not_found(address)
        if etag is not None:
            raise base.changed(address)
        return self._pieces(address, start, end)

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        """Writes an object. Raises InvalidInput (`invalid_address`) also for the name of a
        temporary file."""
        parents, name = _split_to_write(address)
        with (
            _translated(address),
            self._written(parents, name, data, durable=durable) as (parent, temporary),
        ):
            _publish(parent, temporary, name, create_only=create_only)

    def replace(self, address: str, data: bytes, *, version: str) -> str:
        """Writes an object if it still has `version`. Returns the new version.

        The system compares and renames in two steps. A lock of the directory (flock) makes them one
        step among callers of this method. `put`, `delete` and other programs, such as Icechunk, do
        not take the lock: a change of theirs between the two steps is overwritten. If the file
        system cannot lock a directory (NFS), this raises Failed (`storage_unconditional`).
        """
        parents, name = _split_to_write(address)
        with _translated(address):
            try:
                with (
                    self._written(parents, name, data, make=False) as (parent, temporary),
                    _locked(parent),
                ):
                    if _versioned(parent, name)[1] != version:
                        raise base.changed(address)
                    written = _version(
                        os.stat(temporary, dir_fd=parent, follow_symlinks=False), data
                    )
                    os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except directories.NotInsideError:
                raise
            except (FileNotFoundError, NotADirectoryError):
                raise base.changed(address) from None
            return written

    def head(self, address: str) -> ObjectInfo | None:
        """Returns the file's size and date, or None if there is no plain file."""
        *parents, name = base.split_address(address)
        try:
            with (
                _translated(address, reading=True),
                directories.opened(self.directory, parents) as parent,
            ):
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except NotFound:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        modified = EPOCH + timedelta(microseconds=base.micros_of_write(found.st_mtime_ns))
        return ObjectInfo(address, found.st_size, modified)

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        share: tuple[int, int] = (0, 1),
        sized: bool = True,
        streamed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the files under a prefix in batches of LISTING_SCHEMA, also temporary files.
        Directories are left out. Every listing is streamed."""
        del streamed
        base.split_prefix(prefix)
        return list_directory(self.directory, prefix, recursive=recursive, share=share, sized=sized)

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        """Returns the size and date of each address, in the same order (LISTING_SCHEMA)."""
        return list_sizes(self.directory, addresses)

    def list_prefixes(self, prefix: str = "") -> builtins.list[str]:
        """Returns the directories directly below `prefix`, sorted, each ending in `/`. Directories
        whose names cannot be in an address are left out."""
        segments = base.split_prefix(prefix)
        try:
            with (
                _translated(prefix, reading=True),
                directories.opened(self.directory, segments) as descriptor,
                os.scandir(descriptor) as entries,
            ):
                names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        except NotFound:
            return []
        return sorted(filter(base.is_prefix, (f"{prefix}{name}/" for name in names)))

    def sign_put(self, address: str, *, lasts: timedelta) -> str | None:
        """Returns None: a client that may write to the directory writes there itself."""
        del lasts
        base.split_address(address)
        return None

    def sign_get(
        self, address: str, *, lasts: timedelta, method: Literal["GET", "HEAD"] = "GET"
    ) -> str | None:
        """Returns None: there is no server for such a URL."""
        del lasts, method
        base.split_address(address)
        return None

    def delete(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """Deletes files, and then the directories that are empty. The root and the directories
        directly in it stay."""
        return unlink(self.directory, addresses, keep_depth=_KEEP_DEPTH)

    def move(self, moves: Sequence[tuple[str, str]]) -> builtins.list[DeleteOutcome]:
        """Renames files, and then removes directories that are empty, as `delete` does."""
        outcomes: builtins.list[DeleteOutcome | None] = [None] * len(moves)
        for (source, target), members in _by_directories(moves, outcomes).items():
            self._move_between(source, target, members, outcomes)
            directories.remove_empty(self.directory, source, keep_depth=_KEEP_DEPTH)
        return [outcome for outcome in outcomes if outcome is not None]

    def retained(self) -> Retained:
        """Returns `no`: an unlinked file is gone."""
        return Retained("no", "a directory keeps no deleted files")

    @property
    def deletes_versions(self) -> bool:
        """True: there are none."""
        return True

    def delete_versions(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """Returns `missing` for each address, because a directory has no versions."""
        return [DeleteOutcome(address, "missing") for address in addresses]

    def hidden(self, prefix: str) -> Iterator[builtins.list[str]]:
        """Returns nothing, because a directory has no versions."""
        base.split_prefix(prefix)
        return iter(())

    def _move_between(
        self,
        source: tuple[str, ...],
        target: tuple[str, ...],
        members: Sequence[tuple[int, str, str, str]],
        outcomes: builtins.list[DeleteOutcome | None],
    ) -> None:
        """Moves files from one directory to another. `members` are (index, address, name, new
        name)."""

        def some(part: Sequence[tuple[int, str, str, str]]) -> None:
            for index, address, name, new_name in part:
                outcomes[index] = _rename(chain[-1], to[-1], address, name, new_name)

        try:
            with (
                directories.opened_chain(self.directory, source, make=False) as chain,
                directories.opened_chain(self.directory, target) as to,
            ):
                in_parallel(some, members)
                # The target first: a power cut between the two flushes then leaves two names, and
                # never none.
                for descriptor in (*reversed(to), chain[-1]):
                    os.fsync(descriptor)
        except OSError as error:
            for index, address, _, new_name in members:
                there = self.head("/".join((*target, new_name)))
                outcome: Outcome = "failed"
                if isinstance(error, FileNotFoundError):
                    outcome = "missing" if there is None else "moved"
                text = str(error) if outcome == "failed" else None
                outcomes[index] = DeleteOutcome(address, outcome, text)

    def _pieces(self, address: str, start: int, end: int | None) -> Iterator[bytes]:
        with (
            _translated(address, reading=True),
            os.fdopen(self._open(address), "rb", buffering=0) as file,
        ):
            file.seek(start)
            position = start
            while end is None or position < end:
                wanted = _READ_BYTES if end is None else min(_READ_BYTES, end - position)
                piece = file.read(wanted)
                if not piece:
                    return
                position += len(piece)
                yield piece

    def _open(self, address: str) -> int:
        """Returns a descriptor for reading the object. Raises FileNotFoundError if there is no
        plain file."""
        *parents, name = base.split_address(address)
        with directories.opened(self.directory, parents) as parent:
            return _open_plain(parent, name)

    @contextmanager
    def _written(
        self,
        parents: Sequence[str],
        name: str,
        data: Content,
        *,
        make: bool = True,
        durable: bool = True,
    ) -> Iterator[tuple[int, str]]:
        """Writes `data` to a temporary file. The block then gives the file the object's name.

        Yields the descriptor of the file's directory, and the file's name. After the block, flushes
        the directories to disk if `durable` is true. If the block fails, removes the file.
        """
        temporary = f"{name}#{secrets.randbelow(10**12)}"
        chain, file = directories.create_exclusively(self.directory, parents, temporary, make=make)
        try:
            _write(file, data, durable=durable)
            yield chain[-1], temporary
            # The deepest directory first: its flush also writes the others to the disk.
            for descriptor in reversed(chain if durable else []):
                os.fsync(descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=chain[-1])
            raise
        finally:
            directories.close_all(chain)


def _split_to_write(address: str) -> tuple[list[str], str]:
    """Returns the directories and the name of an address. Raises InvalidInput (`invalid_address`)
    for the name of a temporary file."""
    *parents, name = base.split_address(address)
    if _TEMPORARY.fullmatch(name):
        raise InvalidInput(
            "invalid_address", f"{address!r} ends like a temporary file: choose another name"
        )
    return parents, name


def _open_plain(parent: int, name: str) -> int:
    """Returns a descriptor for reading a file. Raises FileNotFoundError if it is not a plain
    file."""
    # Without O_NONBLOCK, a named pipe would block the reader for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link; a socket
            raise FileNotFoundError(f"{name!r} is not a plain file") from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(f"{name!r} is not a plain file")


def temporary_targets(addresses: pa.StringArray) -> pa.StringArray:
    """Returns the address that each temporary file is written for, and null for other files.

    If that address is protected, its temporary file is protected too.
    """
    none = pa.scalar(None, pa.string())
    data = addresses.buffers()[2]
    # The buffer may hold more addresses than these. A search in each address would take 20 times
    # as long.
    if data is None or b"#" not in data.to_pybytes():
        return pa.repeat(none, len(addresses))
    finals = pc.replace_substring_regex(addresses, rf"{TEMPORARY_SUFFIX}\z", "")
    targets: pa.StringArray = pc.if_else(pc.equal(finals, addresses), none, finals)
    return targets


@contextmanager
def _translated(address: str, *, reading: bool = False) -> Iterator[None]:
    """Raises the system's errors as errors of Ebbtide. If `reading`, a path through a link or file
    is not found."""
    try:
        yield
    except NotADirectoryError as error:
        if reading:
            raise base.not_found(address) from None
        raise InvalidInput(
            "invalid_address", f"nothing can be written to {shown(address)}: {error.strerror}"
        ) from None
    except FileExistsError:
        raise Conflict(
            "object_exists", f"there is an object at {address} already", address=address
        ) from None
    except FileNotFoundError:
        raise base.not_found(address) from None
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(f"the disk of {address}", str(error)) from error
        if error.errno == errno.ENAMETOOLONG:
            if reading:
                raise base.not_found(address) from None
            raise InvalidInput(
                "invalid_address",
                f"nothing can be written to {shown(address)}: a name in it is too "
                "long for the file system",
            ) from None
        raise Failed(
            "storage_error",
            f"the file system answered with an error on {address}: {error}",
            address=address,
        ) from error


def _write(descriptor: int, data: Content, *, durable: bool) -> None:
    with os.fdopen(descriptor, "wb") as file:
        for piece in base.chunks(data):
            file.write(piece)
        file.flush()
        if durable:
            os.fsync(file.fileno())


@contextmanager
def _locked(directory: int) -> Iterator[None]:
    """Locks the directory against other callers of this function. Raises Failed
    `storage_unconditional`."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
    except OSError as error:
        raise Failed(
            "storage_unconditional", f"the file system cannot lock a directory: {error}"
        ) from error
    try:
        yield
    finally:
        # Closing alone does not unlock if a forked process has a copy of the descriptor.
        fcntl.flock(directory, fcntl.LOCK_UN)


def _versioned(parent: int, name: str) -> tuple[bytes, str]:
    """Returns the bytes of a plain file, and their version."""
    with os.fdopen(_open_plain(parent, name), "rb") as file:
        # The status is read first: if somebody writes to the file meanwhile, the version is
        # outdated, and a write on its condition fails.
        found = os.fstat(file.fileno())
        data = file.read()
    return data, _version(found, data)


def _version(found: os.stat_result, data: bytes) -> str:
    """Returns a file's version: inode number, time, size and checksum of the content.

    The checksum is needed: the file system's clock ticks every few milliseconds, and within one
    tick a later file can get the same inode number.
    """
    checksum = hashlib.sha256(data).hexdigest()
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}-{checksum}"


def _publish(parent: int, temporary: str, name: str, *, create_only: bool) -> None:
    if create_only:
        os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
        os.unlink(temporary, dir_fd=parent)
    else:
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


def _by_directories(
    moves: Sequence[tuple[str, str]], outcomes: list[DeleteOutcome | None]
) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[int, str, str, str]]]:
    """Groups moves by their directories, as (index, address, name, new name). Sets the outcome of
    each move with an invalid address to `failed`."""
    members: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[int, str, str, str]]] = {}
    for index, (address, target) in enumerate(moves):
        try:
            *source, name = base.split_address(address)
            *others, new_name = base.split_address(target)
        except InvalidInput as error:
            outcomes[index] = DeleteOutcome(address, "failed", error.message)
        else:
            key = (tuple(source), tuple(others))
            members.setdefault(key, []).append((index, address, name, new_name))
    return members


def _rename(source: int, target: int, address: str, name: str, new_name: str) -> DeleteOutcome:
    try:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
    except FileNotFoundError:
        try:
            os.stat(new_name, dir_fd=target, follow_symlinks=False)
        except OSError:
            return DeleteOutcome(address, "missing")
    except OSError as error:
        return DeleteOutcome(address, "failed", str(error))
    return DeleteOutcome(address, "moved")
