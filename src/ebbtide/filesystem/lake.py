"""The contract of the places that the file system reads and writes, and the one for a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, Final, Protocol

from ebbtide.api.repositories import open_store
from ebbtide.errors import EbbtideError
from ebbtide.filesystem.places import Place
from ebbtide.store.content.entries import Entry
from ebbtide.store.objects.objects import Objects, Readable
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import OnlyIf

PAGE_ROWS: Final = 1000


class OpenedObject(Protocol):
    """An object that is open for reading. Its bytes do not change."""

    @property
    def entry(self) -> Entry:
        """The object's path, size, checksum, date, type and metadata."""

    def read(self, start: int, end: int) -> bytes:
        """Returns the bytes from `start` to before `end`."""


class Lake(Protocol):
    """A store, in this process or behind a server. Methods raise errors of `ebbtide.errors`."""

    def repositories(self) -> Iterator[str]:
        """Yields the names of all repositories."""

    def refs(self, repository: str) -> Iterator[str]:
        """Yields the names of the branches, then of the tags."""

    def stat(self, place: Place) -> Entry:
        """Returns the entry of an object."""

    def list(self, place: Place, *, delimiter: str) -> Iterator[Entry | str]:
        """Yields the entries whose paths begin with the place's path. With a delimiter, yields the
        common prefixes in place of the entries below them."""

    def open(self, place: Place) -> OpenedObject:
        """Opens an object for reading."""

    def put(self, place: Place, data: BinaryIO, *, only_new: bool) -> None:
        """Writes an object to a branch. With `only_new`, raises Conflict `precondition_failed` if
        there is one."""

    def delete(self, place: Place, paths: Sequence[str]) -> None:
        """Deletes the objects at `paths` of a branch. Paths without an object are no error."""

    def copy(self, source: Place, destination: Place) -> None:
        """Copies an object to a branch."""

    def move(self, source: Place, destination: Place) -> None:
        """Moves an object within its branch."""

    def commit(self, place: Place, message: str, metadata: Mapping[str, str]) -> str:
        """Commits the staged changes of a branch. Returns the commit's id."""

    def tell(self, error: EbbtideError) -> None:
        """Completes an error about a commit that a run closed, as `Store.tell` does."""

    def close(self) -> None:
        """Closes the connections."""


class StoreObject:
    """An object of a store that is open for reading."""

    def __init__(self, found: Readable) -> None:
        self._found = found
        self.entry = found.entry

    def read(self, start: int, end: int) -> bytes:
        """Returns the bytes from `start` to before `end`. A whole object is checked against its
        checksum. Raises Failed `corrupt_object`, and Gone."""
        end = min(end, self.entry.size_bytes)
        if start >= end:
            return b""
        if start == 0 and end == self.entry.size_bytes:
            return b"".join(self._found.stream())
        return b"".join(self._found.stream(start=start, end=end))


class StoreLake:
    """A store that this process opens, in a directory or in the database of a URL."""

    def __init__(self, store: str | None, *, committer: str) -> None:
        self._store = open_store(store)
        self._committer = committer

    def _repository(self, place: Place) -> Repository:
        return self._store.repository(place.repository)

    def _objects(self, place: Place) -> Objects:
        return self._repository(place).objects

    def repositories(self) -> Iterator[str]:
        """Yields the names of all repositories."""
        yield from (each.info.name for each in self._store.catalog.list())

    def refs(self, repository: str) -> Iterator[str]:
        """Yields the names of the branches, then of the tags."""
        found = self._store.repository(repository)
        yield from (each.name for each in found.branches.list())
        yield from (each.name for each in found.tags.list())

    def stat(self, place: Place) -> Entry:
        """Returns the entry of an object. Raises NotFound."""
        return self._objects(place).stat(place.ref, place.path)

    def list(self, place: Place, *, delimiter: str) -> Iterator[Entry | str]:
        """Yields entries and common prefixes. Raises NotFound for an unknown ref."""
        objects = self._objects(place)
        if not delimiter:
            yield from objects.walk(place.ref, prefix=place.path)
            return
        after: str | None = ""
        while after is not None:
            page = objects.list(
                place.ref, prefix=place.path, delimiter=delimiter, after=after, amount=PAGE_ROWS
            )
            yield from page.entries
            yield from page.common_prefixes
            after = page.next_after

    def open(self, place: Place) -> StoreObject:
        """Opens an object for reading. Later writes to the path do not change it."""
        return StoreObject(self._objects(place).open(place.ref, place.path))

    def put(self, place: Place, data: BinaryIO, *, only_new: bool) -> None:
        """Writes an object to a branch. Raises as `Objects.put` does."""
        only_if = OnlyIf() if only_new else None
        self._objects(place).put(place.ref, place.path, data, only_if=only_if)

    def delete(self, place: Place, paths: Sequence[str]) -> None:
        """Deletes the objects at `paths` of a branch."""
        self._objects(place).delete_many(place.ref, paths)

    def copy(self, source: Place, destination: Place) -> None:
        """Copies an object to a branch, which may be of another repository."""
        objects = self._objects(destination)
        if source.repository == destination.repository:
            objects.copy(destination.ref, destination.path, source.ref, source.path)
            return
        found = self._objects(source).open(source.ref, source.path)
        objects.put_copy(
            destination.ref,
            destination.path,
            found,
            content_type=found.entry.content_type,
            metadata=found.entry.metadata,
        )

    def move(self, source: Place, destination: Place) -> None:
        """Moves an object within its branch."""
        self._objects(source).move(source.ref, destination.path, source.path)

    def commit(self, place: Place, message: str, metadata: Mapping[str, str]) -> str:
        """Commits the staged changes of a branch. Raises as `Commits.commit` does."""
        commits = self._repository(place).commits
        made = commits.commit(place.ref, message, metadata=metadata, committer=self._committer)
        return made.commit_id

    def tell(self, error: EbbtideError) -> None:
        """Completes an error, as `Store.tell` does."""
        self._store.tell(error)

    def close(self) -> None:
        """Closes the store."""
        self._store.close()
