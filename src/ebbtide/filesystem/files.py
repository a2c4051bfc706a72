"""The files that the file system opens: readers, writers, and transactions of writers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, cast

from fsspec.spec import AbstractBufferedFile
from fsspec.transaction import Transaction

from ebbtide.filesystem.places import Place

if TYPE_CHECKING:
    from ebbtide.filesystem.lake import Lake, OpenedObject

IN_MEMORY_BYTES_MAX: Final = 8 * 1024 * 1024
"""A file that is written stays in memory up to this size, and is in a temporary file above it."""


class Owner(Protocol):
    """The part of the file system that its files use."""

    commit_message: str | None

    @property
    def lake(self) -> Lake:
        """The store or server."""

    def os_errors(self, path: str) -> AbstractContextManager[None]:
        """Raises errors of the block as those of the operating system."""

    def commit(
        self, branch: str, message: str, *, metadata: Mapping[str, str] | None = None
    ) -> str:
        """Commits what is staged on a branch."""


class ReadFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object that is read. Later writes to its path do not change it."""

    def __init__(self, fs: Owner, path: str, opened: OpenedObject, **options: Any) -> None:
        self._opened = opened
        super().__init__(fs, path, size=opened.entry.size_bytes, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        with self.fs.os_errors(self.path):
            return self._opened.read(start, end)


class WrittenFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object that is written. It is staged as a whole when the file is closed, or at the end of
    the transaction. If the block of `with` fails, nothing is staged."""

    def __init__(self, fs: Owner, place: Place, **options: Any) -> None:
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

    def __init__(self, fs: Owner) -> None:
        super().__init__(fs)
        self.message: str | None = fs.commit_message
        self.metadata: Mapping[str, str] = {}
        self.commits: dict[str, str] = {}

    def complete(self, commit: bool = True) -> None:
        """Stages the files and commits, or discards the files."""
        fs: Owner = self.fs
        branches = list(dict.fromkeys(str(file.place.at("")) for file in self.files))
        super().complete(commit=commit)
        if commit and self.message is not None:
            for branch in branches:
                self.commits[branch] = fs.commit(branch, self.message, metadata=self.metadata)
