"""The lake that the file system reads and writes: its paths, its contract, a store, and a server.

In a path `REPO/REF/PATH` a slash in the ref is written `%2F`, as in the paths of the S3 gateway.

A server is used by its routes of objects, refs and commits. They speak lakeFS's protocol, with one
route more for moves. Source: lakeFS's `api/swagger.yml`. Not for: other routes, which lakeFS's own
clients have.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, Final, Protocol, cast
from urllib.parse import quote, unquote, urlencode, urlsplit

from ebbtide.api.repositories import open_store
from ebbtide.errors import (
    KINDS,
    QUARANTINE_FIELDS,
    Conflict,
    Denied,
    EbbtideError,
    Failed,
    Gone,
    InvalidInput,
    NotFound,
)
from ebbtide.store.content.entries import Entry
from ebbtide.store.objects.objects import Objects, Readable
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import OnlyIf

_SAFE = "~^@"

PAGE_ROWS: Final = 1000
DELETED_MAX: Final = 1000
"""The most paths of one request for deletes."""
SECONDS_MAX: Final = 120
PIECE_BYTES: Final = 8 * 1024 * 1024
_REPEATED: Final = ("GET", "HEAD")
_ERRORS: Final[Mapping[int, tuple[type[EbbtideError], str]]] = {
    400: (InvalidInput, "invalid_argument"),
    401: (Denied, "key_invalid"),
    403: (Denied, "role_missing"),
    404: (NotFound, "object_not_found"),
    409: (Conflict, "branch_moved"),
    410: (Gone, "commit_expired"),
    412: (Conflict, "precondition_failed"),
    416: (InvalidInput, "range_invalid"),
}
"""The class and kind of an error, by the status of a response whose kind is unknown."""
_CONFLICTS: Final = ("nothing_to_commit", "write_protected")
"""Kinds of Conflict with another status, which lakeFS's clients expect."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a store. Parts that a path does not have are empty."""

    repository: str = ""
    ref: str = ""
    path: str = ""

    @classmethod
    def of(cls, text: str) -> Place:
        """Returns the place of a path without protocol."""
        repository, _, rest = text.partition("/")
        ref, _, path = rest.partition("/")
        return cls(repository, unquote(ref), path)

    def __str__(self) -> str:
        ref = quote(self.ref, safe=_SAFE)
        return "/".join(part for part in (self.repository, ref, self.path) if part)

    def at(self, path: str) -> Place:
        """Returns the place of another path of the same ref."""
        return Place(self.repository, self.ref, path)

    def require_object(self) -> None:
        """Raises ValueError unless the place can have an object."""
        if not self.path:
            raise ValueError(
                f"{str(self) or 'the root'!r} is no place of an object: write REPO/BRANCH/PATH"
            )


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


class ServerObject:
    """An object of a server that is open for reading."""

    def __init__(self, lake: ServerLake, place: Place, entry: Entry) -> None:
        self._lake = lake
        self._place = place
        self.entry = entry

    def read(self, start: int, end: int) -> bytes:
        """Returns the bytes from `start` to before `end`. Raises Conflict `precondition_failed` if
        the object was replaced since it was opened, and as `ServerLake.stat` does."""
        end = min(end, self.entry.size_bytes)
        if start >= end:
            return b""
        return self._lake.read(self._place, self.entry, start, end)


class ServerLake:
    """A server at `endpoint`. Each thread has a connection of its own."""

    def __init__(self, endpoint: str, key: str, secret: str) -> None:
        place = urlsplit(endpoint)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise InvalidInput(
                "invalid_argument",
                f"{endpoint!r:.100} is no URL of a server: write http://HOST:PORT",
            )
        self._https = place.scheme == "https"
        self._host = place.netloc.rpartition("@")[2]
        self._root = place.path.rstrip("/").removesuffix("/api/v1") + "/api/v1"
        pair = base64.b64encode(f"{key}:{secret}".encode()).decode()
        self._headers = {"Authorization": f"Basic {pair}"}
        self._local = threading.local()

    def repositories(self) -> Iterator[str]:
        """Yields the names of all repositories."""
        yield from (each["id"] for each in self._pages("/repositories", {}))

    def refs(self, repository: str) -> Iterator[str]:
        """Yields the names of the branches, then of the tags."""
        for kind in ("branches", "tags"):
            where = f"{_url(Place(repository))}/{kind}"
            yield from (each["id"] for each in self._pages(where, {}))

    def stat(self, place: Place) -> Entry:
        """Returns the entry of an object. Raises NotFound, Denied, Gone, and Failed."""
        return _entry(self._json("GET", f"{_ref(place)}/objects/stat", {"path": place.path}))

    def list(self, place: Place, *, delimiter: str) -> Iterator[Entry | str]:
        """Yields entries and common prefixes. Raises as `stat` does."""
        asked = {"prefix": place.path, "delimiter": delimiter}
        for each in self._pages(f"{_ref(place)}/objects/ls", asked):
            yield each["path"] if each["path_type"] == "common_prefix" else _entry(each)

    def open(self, place: Place) -> ServerObject:
        """Opens an object for reading. Raises as `stat` does."""
        return ServerObject(self, place, self.stat(place))

    def read(self, place: Place, entry: Entry, start: int, end: int) -> bytes:
        """Returns bytes of an object, as `ServerObject.read` describes."""
        headers = {"Range": f"bytes={start}-{end - 1}"}
        where = f"{_ref(place)}/objects"
        data, told = self._request("GET", where, {"path": place.path}, headers=headers)
        if told.get("etag", "").strip('"') != entry.checksum:
            raise Conflict(
                "branch_moved",
                f"{place} was replaced while it was read: open it again, or read a commit",
            )
        return data

    def put(self, place: Place, data: BinaryIO, *, only_new: bool) -> None:
        """Writes an object to a branch. Raises as `stat` does, and Conflict
        `precondition_failed`."""
        headers = {"Content-Type": "application/octet-stream"}
        if only_new:
            headers["If-None-Match"] = "*"
        where = f"{_branch(place)}/objects"
        self._request("POST", where, {"path": place.path}, headers=headers, body=data)

    def delete(self, place: Place, paths: Sequence[str]) -> None:
        """Deletes objects, a thousand with each request. Raises as `stat` does, and Failed
        `storage_error` for the first path that could not be deleted."""
        for start in range(0, len(paths), DELETED_MAX):
            body = {"paths": list(paths[start : start + DELETED_MAX])}
            answer = self._json("POST", f"{_branch(place)}/objects/delete", {}, body)
            for error in answer.get("errors") or ():
                raise _error_of(error["status_code"], error)

    def copy(self, source: Place, destination: Place) -> None:
        """Copies an object to a branch. Between repositories, the bytes pass through this
        process."""
        if source.repository != destination.repository:
            found = self.open(source)
            with SpooledTemporaryFile(max_size=PIECE_BYTES) as data:
                for start in range(0, found.entry.size_bytes, PIECE_BYTES):
                    data.write(found.read(start, start + PIECE_BYTES))
                self.put(destination, cast(BinaryIO, data), only_new=False)
            return
        body = {"src_path": source.path, "src_ref": source.ref}
        where = f"{_branch(destination)}/objects/copy"
        self._json("POST", where, {"dest_path": destination.path}, body)

    def move(self, source: Place, destination: Place) -> None:
        """Moves an object within its branch."""
        body = {"src_path": source.path}
        where = f"{_branch(source)}/objects/move"
        self._json("POST", where, {"dest_path": destination.path}, body)

    def commit(self, place: Place, message: str, metadata: Mapping[str, str]) -> str:
        """Commits the staged changes of a branch. Raises Conflict `nothing_to_commit`."""
        body = {"message": message, "metadata": dict(metadata)}
        return str(self._json("POST", f"{_branch(place)}/commits", {}, body)["id"])

    def tell(self, error: EbbtideError) -> None:
        """Does nothing: the server has completed its errors."""
        del error

    def close(self) -> None:
        """Closes the connection of this thread."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _pages(self, where: str, asked: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        after = ""
        while True:
            page = self._json("GET", where, {**asked, "after": after, "amount": str(PAGE_ROWS)})
            yield from page["results"]
            if not page["pagination"]["has_more"]:
                return
            after = page["pagination"]["next_offset"]

    def _json(
        self, method: str, where: str, query: Mapping[str, str], body: object = None
    ) -> dict[str, Any]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        answer, _ = self._request(method, where, query, headers=headers, body=data)
        found: dict[str, Any] = json.loads(answer)
        return found

    def _request(
        self,
        method: str,
        where: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Returns the body and the headers of a response. Repeats a request that only reads, once,
        if the server has closed the connection meanwhile."""
        url = f"{self._root}{where}?{urlencode(query)}"
        sent = {**self._headers, **headers}
        if body is not None and not isinstance(body, bytes):
            # The size is known, so that the server need not take a body in chunks.
            sent["Content-Length"] = str(body.seek(0, 2))
            body.seek(0)
        for attempt in (1, 2):
            connection = self._connection()
            try:
                connection.request(method, url, body, sent)
                answer = connection.getresponse()
                data = answer.read()
                break
            except (OSError, HTTPException) as error:
                self.close()
                if attempt == 2 or method not in _REPEATED:
                    reason = str(error) or type(error).__name__
                    raise Failed(
                        "storage_error", f"the server at {self._host} does not answer: {reason}"
                    ) from error
        if answer.status >= 300:
            raise _error_of(answer.status, _document(data))
        return data, {name.lower(): value for name, value in answer.getheaders()}

    def _connection(self) -> HTTPConnection:
        connection: HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            made = HTTPSConnection if self._https else HTTPConnection
            connection = made(self._host, timeout=SECONDS_MAX)
            self._local.connection = connection
        return connection


def _url(place: Place) -> str:
    return f"/repositories/{quote(place.repository, safe='')}"


def _ref(place: Place) -> str:
    return f"{_url(place)}/refs/{quote(place.ref, safe='')}"


def _branch(place: Place) -> str:
    return f"{_url(place)}/branches/{quote(place.ref, safe='')}"


def _entry(found: Mapping[str, Any]) -> Entry:  # JSON
    return Entry(
        path=found["path"],
        address=found["physical_address"],
        size_bytes=found.get("size_bytes") or 0,
        checksum=found["checksum"],
        mtime=datetime.fromtimestamp(found["mtime"], UTC),
        content_type=found.get("content_type"),
        metadata=found.get("metadata") or {},
    )


def _document(data: bytes) -> Mapping[str, Any]:  # JSON
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _error_of(status: int, told: Mapping[str, Any]) -> EbbtideError:  # JSON
    made, kind = _ERRORS.get(status, (Failed, "storage_error"))
    told_kind = str(told.get("kind"))
    if told_kind in _CONFLICTS:
        made = Conflict
    message = str(
        told.get("detail") or told.get("message") or f"the server answered with status {status}"
    )
    more = {name: told[name] for name in QUARANTINE_FIELDS if name in told}
    return made(told_kind if told_kind in KINDS else kind, message, **more)
