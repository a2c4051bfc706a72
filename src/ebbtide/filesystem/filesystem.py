"""The file system `ebbtide://` for fsspec, and so for pandas, pyarrow, DuckDB, Polars and Zarr.

It opens files as readers and writers. Writers of one transaction become one commit. Source:
fsspec's documentation, "Developing with fsspec".
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from tempfile import SpooledTemporaryFile
from threading import Lock
from typing import Any, BinaryIO, ClassVar, Final, cast

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.transaction import Transaction

from ebbtide.errors import Conflict, Denied, Gone, NotFound
from ebbtide.filesystem.lake import Lake, OpenedObject, Place, ServerLake, StoreLake
from ebbtide.store.content.entries import Entry

IN_MEMORY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A file that is written stays in memory up to this size, and is in a temporary file above it."""
Info = dict[str, Any]
"""A file or directory as fsspec describes it, with more keys for a file: `checksum`, `mtime`,
`content_type` and `metadata`."""
_FORBIDDEN: Final = ("write_protected", "role_missing")


class ReadFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object that is read. Later writes to its path do not change it."""

    def __init__(
        self, fs: EbbtideFileSystem, path: str, opened: OpenedObject, **options: Any
    ) -> None:
        self._opened = opened
        super().__init__(fs, path, size=opened.entry.size_bytes, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        with self.fs.os_errors(self.path):
            return self._opened.read(start, end)


class WrittenFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object that is written. It is staged as a whole when the file is closed, or at the end of
    the transaction. If the block of `with` fails, nothing is staged."""

    def __init__(self, fs: EbbtideFileSystem, place: Place, **options: Any) -> None:
        self.place = place
        self._written: BinaryIO | None = None
        super().__init__(fs, str(place), **options)

    def _initiate_upload(self) -> None:
        self._written = cast(BinaryIO, SpooledTemporaryFile(max_size=IN_MEMORY_BYTES_MAX))  # noqa: SIM115 - closed by `discard`

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._written is not None  # fsspec calls `_initiate_upload` first
        self._written.write(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Stages the object on its branch. Raises FileExistsError in mode `xb` if there is one."""
        assert self._written is not None
        self._written.seek(0)
        try:
            with self.fs.os_errors(self.path):
                self.fs.lake.put(self.place, self._written, only_new=self.mode == "xb")
        finally:
            self.discard()

    def discard(self) -> None:
        """Drops the bytes, and stages nothing."""
        if self._written is not None:
            self._written.close()
            self._written = None

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
            return
        self.discard()
        self.closed = True


class CommittingTransaction(Transaction):  # type: ignore[misc]  # fsspec has no types
    """A transaction: its files are staged at its end, in order, or not at all if the block fails.

    With a `message`, the transaction then commits each branch that it wrote to. `commits` has the
    id of each commit, by `REPO/BRANCH`. Other changes that are staged on the branch are in the
    commit too.
    """

    def __init__(self, fs: EbbtideFileSystem) -> None:
        super().__init__(fs)
        self.message: str | None = fs.commit_message
        self.metadata: Mapping[str, str] = {}
        self.commits: dict[str, str] = {}

    def complete(self, commit: bool = True) -> None:
        """Stages the files and commits, or discards the files."""
        fs: EbbtideFileSystem = self.fs
        branches = list(dict.fromkeys(str(file.place.at("")) for file in self.files))
        super().complete(commit=commit)
        if commit and self.message is not None:
            for branch in branches:
                self.commits[branch] = fs.commit(branch, self.message, metadata=self.metadata)


class EbbtideFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects of branches, tags and commits, by paths `REPO/REF/PATH`.

    A slash in a ref is written `%2F`. Refs that are not branches can only be read. A write is
    staged on its branch; `commit`, or a transaction with a message, commits it. There are no empty
    directories: `mkdir` does nothing.

    Missing objects, refs and repositories raise FileNotFoundError, existing objects in mode `xb`
    FileExistsError, protected branches and missing rights PermissionError. An imported object that
    was overwritten where it lies raises OSError with ESTALE. Their `__cause__` is the error of
    `ebbtide.errors`. Other errors are of `ebbtide.errors`.
    """

    protocol: ClassVar[str] = "ebbtide"
    root_marker: ClassVar[str] = ""
    transaction_type: ClassVar[type[CommittingTransaction]] = CommittingTransaction

    def __init__(
        self,
        store: str | None = None,
        *,
        endpoint: str | None = None,
        key: str | None = None,
        secret: str | None = None,
        committer: str = "",
        commit_message: str | None = None,
        **options: Any,
    ) -> None:
        """Opens a store, or connects to a server.

        - `store`: the store, as `ebbtide.open_store` takes it. The default is EBBTIDE_STORE.
        - `endpoint`, `key`, `secret`: the URL of a server, such as `http://127.0.0.1:8000`, and an
          access key, in place of a store.
        - `committer`: the name in commits of a store. A server records the name of the key.
        - `commit_message`: transactions commit with this message. Without one they only stage.
        - `options`: those of every file system of fsspec.

        Raises NotFound `store_not_found`, InvalidInput `invalid_argument`, and Failed.
        """
        super().__init__(**options)
        self.commit_message = commit_message
        self._place = (store, endpoint, key, secret, committer)
        self._lock = Lock()
        self._lake: tuple[int, Lake] | None = None
        self.lake  # noqa: B018 - opens the store, so that an error is raised here

    @property
    def lake(self) -> Lake:
        """The store or server. A forked process opens its own, because connections cannot be
        shared."""
        with self._lock:
            if self._lake is None or self._lake[0] != os.getpid():
                self._lake = os.getpid(), _open_lake(*self._place)
            return self._lake[1]

    @contextmanager
    def os_errors(self, path: str) -> Iterator[None]:
        """Raises errors of the block as those of the operating system, where these have a meaning
        for callers of fsspec."""
        try:
            yield
        except Gone as error:
            self.lake.tell(error)
            number = errno.ESTALE if error.kind == "source_changed" else errno.ENOENT
            raise OSError(number, error.message, path) from error
        except NotFound as error:
            raise FileNotFoundError(errno.ENOENT, error.message, path) from error
        except Conflict as error:
            if error.kind == "precondition_failed":
                raise FileExistsError(errno.EEXIST, error.message, path) from error
            if error.kind in _FORBIDDEN:
                raise PermissionError(errno.EACCES, error.message, path) from error
            raise
        except Denied as error:
            raise PermissionError(errno.EACCES, error.message, path) from error

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return str(super()._strip_protocol(path)).lstrip("/")

    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        """Lists a directory: repositories, then branches and tags, then paths.

        Returns names, or an Info for each. Raises FileNotFoundError.
        """
        name = self._strip_protocol(path)
        with self.os_errors(name):
            found = self._listed(Place.of(name))
        return found if detail else [each["name"] for each in found]

    def _listed(self, place: Place) -> list[Info]:
        if not place.repository:
            return [_directory(Place(name)) for name in self.lake.repositories()]
        if not place.ref:
            refs = self.lake.refs(place.repository)
            return [_directory(Place(place.repository, ref)) for ref in refs]
        prefix = f"{place.path}/" if place.path else ""
        found: list[Info] = []
        for each in self.lake.list(place.at(prefix), delimiter="/"):
            if isinstance(each, Entry):
                found.append(_file(place, each))
            else:
                found.append(_directory(place.at(each.removesuffix("/"))))
        if found or not place.path:
            return found
        return [_file(place, self.lake.stat(place))]

    def info(self, path: str, **_options: Any) -> Info:
        """Returns the Info of a file or directory. Raises FileNotFoundError."""
        name = self._strip_protocol(path)
        place = Place.of(name)
        with self.os_errors(name):
            if not place.path:
                self._require_directory(place)
                return _directory(place)
            try:
                return _file(place, self.lake.stat(place))
            except NotFound as missing:
                inside = self.lake.list(place.at(f"{place.path}/"), delimiter="/")
                if next(iter(inside), None) is None:
                    raise missing from None
                return _directory(place)

    def _require_directory(self, place: Place) -> None:
        if place.ref:
            next(iter(self.lake.list(place, delimiter="/")), None)
        elif place.repository:
            next(iter(self.lake.refs(place.repository)), None)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **options: Any,
    ) -> Any:
        """Returns all files below a path, sorted: names, or a mapping of name to Info.

        Below a ref this is one listing, however many directories there are.
        """
        name = self._strip_protocol(path)
        place = Place.of(name)
        if maxdepth is not None or not place.ref:
            return super().find(path, maxdepth, withdirs, detail, **options)
        found: dict[str, Info] = {}
        with suppress(FileNotFoundError), self.os_errors(name):
            if place.path:
                with suppress(NotFound):
                    found[name] = _file(place, self.lake.stat(place))
            prefix = f"{place.path}/" if place.path else ""
            for entry in self.lake.list(place.at(prefix), delimiter=""):
                if isinstance(entry, Entry):
                    found[str(place.at(entry.path))] = _file(place, entry)
        if withdirs:
            _add_directories(found, place)
        ordered = dict(sorted(found.items()))
        return ordered if detail else list(ordered)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ReadFile | WrittenFile:
        place = Place.of(path)
        place.require_object()
        chosen = {"block_size": block_size, "cache_options": cache_options, **options}
        if mode == "rb":
            with self.os_errors(path):
                opened = self.lake.open(place)
            return ReadFile(self, path, opened, mode=mode, **chosen)
        if mode not in ("wb", "xb"):
            raise NotImplementedError(f"mode {mode!r}: an object is written as a whole")
        # Checked again when the object is staged. Here the error comes before any byte is written.
        if mode == "xb" and self.isfile(path):
            raise FileExistsError(errno.EEXIST, "there is a file already", path)
        return WrittenFile(self, place, mode=mode, autocommit=autocommit, **chosen)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_options: Any
    ) -> bytes:
        """Returns the bytes of a file, or those from `start` to before `end`; negative numbers
        count from its end. A whole file is checked against its checksum. Raises
        FileNotFoundError."""
        name = self._strip_protocol(path)
        place = Place.of(name)
        place.require_object()
        with self.os_errors(name):
            opened = self.lake.open(place)
            first, last, _ = slice(start, end).indices(opened.entry.size_bytes)
            return opened.read(first, last)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Writes a file. With the mode `create`, raises FileExistsError if there is one."""
        with self.open(path, "xb" if mode == "create" else "wb", **options) as file:
            file.write(value)

    def cp_file(self, path1: str, path2: str, **_options: Any) -> None:
        """Copies a file, to another branch or repository too. Directories are skipped. Raises
        FileNotFoundError."""
        source, destination = (Place.of(self._strip_protocol(each)) for each in (path1, path2))
        if not source.path:
            return
        with self.os_errors(str(source)):
            try:
                self.lake.copy(source, destination)
            except NotFound:
                if not self.isdir(str(source)):
                    raise

    def mv(
        self,
        path1: str,
        path2: str,
        recursive: bool = False,
        maxdepth: int | None = None,
        **options: Any,
    ) -> None:
        """Moves files. A file within its branch is moved at once; others are copied, and then
        deleted. Raises FileNotFoundError."""
        source, destination = (Place.of(self._strip_protocol(each)) for each in (path1, path2))
        same_branch = source.at("") == destination.at("")
        is_plain = not recursive and destination.path and not str(path2).endswith("/")
        if not (same_branch and is_plain and self.isfile(path1) and not self.isdir(path2)):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
        elif source != destination:
            with self.os_errors(str(source)):
                self.lake.move(source, destination)

    def rm(
        self, path: str | Sequence[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """Deletes files, or directories with `recursive`. Branches and repositories stay.

        Raises FileNotFoundError, IsADirectoryError without `recursive`, and ValueError for a whole
        repository.
        """
        expanded = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        chosen: dict[Place, list[str]] = defaultdict(list)
        for name in expanded:
            place = Place.of(name)
            if not place.ref:
                raise ValueError(f"{name!r} is no branch: name the branch whose files are deleted")
            if not recursive and self.info(name)["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, "a directory: give recursive=True", name)
            if place.path:
                chosen[place.at("")].append(place.path)
        for branch, paths in chosen.items():
            with self.os_errors(str(branch)):
                self.lake.delete(branch, paths)

    def _rm(self, path: str) -> None:
        self.rm(path)

    def mkdir(self, path: str, create_parents: bool = True, **_options: Any) -> None:
        """Does nothing: a directory exists while it has files."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing: a directory exists while it has files."""

    def rmdir(self, path: str) -> None:
        """Does nothing for an empty directory, which does not exist. Raises OSError for one that
        has files."""
        if self.isdir(path):
            raise OSError(errno.ENOTEMPTY, "the directory has files: use rm", path)

    def created(self, path: str) -> datetime:
        """Returns the date of a file (UTC)."""
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        """Returns the date of a file (UTC). Raises FileNotFoundError."""
        found: datetime = self.info(path)["mtime"]
        return found

    def ukey(self, path: str) -> str:
        """Returns the checksum of a file: another text if its bytes change."""
        return str(self.info(path)["checksum"])

    def commit(
        self, branch: str, message: str, *, metadata: Mapping[str, str] | None = None
    ) -> str:
        """Commits what is staged on a branch, `REPO/BRANCH`. Returns the commit's id.

        Raises Conflict `nothing_to_commit` or `branch_moved`: the staged changes are still there.
        Raises FileNotFoundError, PermissionError, and InvalidInput `invalid_argument`.
        """
        name = self._strip_protocol(branch)
        with self.os_errors(name):
            return self.lake.commit(Place.of(name), message, metadata or {})

    def close(self) -> None:
        """Closes the store. The next call opens it again."""
        with self._lock:
            if self._lake is not None and self._lake[0] == os.getpid():
                self._lake[1].close()
            self._lake = None


def _open_lake(
    store: str | None, endpoint: str | None, key: str | None, secret: str | None, committer: str
) -> Lake:
    if endpoint is None:
        return StoreLake(None if store is None else str(store), committer=committer)
    return ServerLake(endpoint, key or "", secret or "")


def _file(place: Place, entry: Entry) -> Info:
    return {
        "name": str(place.at(entry.path)),
        "size": entry.size_bytes,
        "type": "file",
        "checksum": entry.checksum,
        "mtime": entry.mtime,
        "content_type": entry.content_type,
        "metadata": dict(entry.metadata),
    }


def _directory(place: Place) -> Info:
    return {"name": str(place), "size": 0, "type": "directory"}


def _add_directories(found: dict[str, Info], place: Place) -> None:
    """Adds the directories that the files are in, from `place` on."""
    top = str(place)
    for name in list(found):
        inside = name.removeprefix(top).strip("/")
        for count in range(inside.count("/") + 1 if name != top else 0):
            parent = "/".join([top, *inside.split("/")[:count]])
            if parent not in found:
                found[parent] = _directory(Place.of(parent))
