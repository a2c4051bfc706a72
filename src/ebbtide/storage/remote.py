"""Object storages behind obstore: S3 and compatible servers, Azure, and `memory:` for tests."""

from __future__ import annotations

import builtins
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import InvalidPathError
from obstore.store import AzureStore, MemoryStore, S3Store

from ebbtide.arrow import texts
from ebbtide.errors import Failed, InvalidInput, NotFound
from ebbtide.storage import base, clients, parts, profiles, requests, retained
from ebbtide.storage.base import Content, DeleteOutcome, ObjectInfo, Retained
from ebbtide.storage.copies import Copier, sign_head
from ebbtide.storage.deletes import deletes_of

if TYPE_CHECKING:
    import arro3.core
    from obstore import GetOptions, ListResult, ObjectMeta, PutResult, UpdateVersion

_CREATE_BYTES_MAX: Final = 64 * 1024 * 1024
_SLICE_BYTES: Final = 256 * 1024
_DELETE_KEYS_MAX: Final = 1_000
_DELETES_AT_ONCE: Final = 4
_COPIES_AT_ONCE: Final = 16
_HEADS_AT_ONCE: Final = 16
_ACCOUNT_URL_LASTS: Final = timedelta(minutes=1)
_SIGNED_MAX: Final = timedelta(days=7)
"""S3 refuses signed URLs that last longer."""


@dataclass(frozen=True, slots=True)
class RemoteStorage:
    """A bucket, or a prefix in one, at `url` (normalized by `open_storage`).

    `options` have the names that obstore uses for the kind of storage: for S3 `endpoint`,
    `allow_http`, `region`, `virtual_hosted_style_request`, `access_key_id`, … Without options the
    profile of the URL counts (`profiles`). Missing options come from the environment (`AWS_…`,
    `AZURE_…`). Options are part of the value: they are pickled and compared, and never shown. A
    pickled storage has the keys of its profile, for executors that do not have the profile.
    """

    url: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str, options: Mapping[str, str] | None = None) -> RemoteStorage:
        """Returns the storage at a normalized URL. Raises InvalidInput (`invalid_setting`) for
        options that the kind of storage does not know."""
        storage = cls(url, tuple(sorted((options or {}).items())))
        storage._client()
        return storage

    def __reduce__(self) -> tuple[type[RemoteStorage], tuple[str, profiles.Options]]:
        options = self.effective_options()
        if self.url.startswith("s3:"):
            options = profiles.portable(options)
        return RemoteStorage, (self.url, options)

    def effective_options(self) -> profiles.Options:
        """Returns the options, or those of the profile for the URL as they are now."""
        return self.options or profiles.options_of(self.url)

    @property
    def shared_between_processes(self) -> bool:
        """False for `memory:`, because each process has its own."""
        return not self.url.startswith("memory:")

    def get(self, address: str) -> bytes:
        """Returns the whole object. Raises NotFound (`object_not_found`)."""
        base.split_address(address)
        with clients.translated(address):
            return bytes(self._client().get(address).bytes())

    def get_versioned(self, address: str) -> tuple[bytes, str]:
        """Returns the whole object and its version, for `replace`."""
        base.split_address(address)
        with clients.translated(address):
            found = self._client().get(address)
            return bytes(found.bytes()), _version(address, found.meta)

    def stream(
        self, address: str, *, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Iterator[bytes]:
        """Returns the bytes of a range in pieces. Each piece is a request of its own, so that no
        timeout includes the time that the caller takes between two pieces. The `etag` is a
        condition of each request."""
        base.split_address(address)
        if end is not None and end <= start:
            self._size(address, etag)
            return iter(())
        return self._pieces(address, start, end, etag)

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        """Writes an object, which is always durable.

        An upload in parts cannot have a condition. With `create_only`, data other than `bytes`
        that is larger than 64 MiB therefore raises InvalidInput (`invalid_argument`). So does data
        of unknown size above 156 GiB, as soon as that is known.
        """
        del durable
        base.split_address(address)
        size = parts.size_of(data)
        part = parts.part_bytes(address, size)
        if isinstance(data, bytes):
            with clients.translated(address):
                mode: Literal["create", "overwrite"] = "create" if create_only else "overwrite"
                obstore.put(self._client(), address, data, mode=mode, chunk_size=part)
            return
        is_stored = isinstance(data, base.SizedPieces) and data.is_stored
        at_once = 1 if is_stored else parts.PARTS_AT_ONCE
        with parts.sending.share(part, size, parts_max=at_once) as share:
            pieces = base.chunks(data)
            begun, is_all = _begin(pieces, _CREATE_BYTES_MAX if create_only else part)
            if is_all:
                self._put_whole(address, begun, create_only=create_only)
            elif create_only:
                raise InvalidInput(
                    "invalid_argument",
                    f"{address} is too large to be created conditionally: write it to a new "
                    "address",
                )
            else:
                self._put_parts(address, chain(_taken(begun), pieces), share)

    def _put_whole(self, address: str, pieces: deque[bytes], *, create_only: bool) -> None:
        """Writes an object of pieces that are in memory, in one request. They are not joined, which
        would take as much memory again."""
        with clients.translated(address):
            obstore.put(
                self._client(),
                address,
                _taken(pieces),
                mode="create" if create_only else "overwrite",
                use_multipart=False,
            )

    def _put_parts(self, address: str, pieces: Iterator[bytes], share: parts.SendingShare) -> None:
        with clients.translated(address):
            obstore.put(
                self._client(),
                address,
                _from_a_thread(parts.bounded(address, pieces, share)),
                chunk_size=share.part,
                max_concurrency=share.at_once,
            )

    def replace(self, address: str, data: bytes, *, version: str) -> str:
        """Writes an object if it still has `version`. Returns the new version. This is one request;
        S3 allows 5 GiB in one."""
        base.split_address(address)
        expected: UpdateVersion = json.loads(version)
        written, found = None, None
        with clients.translated(address):
            try:
                written = obstore.put(self._client(), address, data, mode=expected)
            except clients.CHANGED:
                found = self.head(address)
        if written is None:
            if found is None or found.etag is None or found.etag != expected.get("e_tag"):
                raise base.changed(address)
            raise Failed(
                "storage_unconditional",
                f"{self.url}/{address} has the version that was read, and the server does not "
                "replace it: its conditional writes (If-Match) do not work, as those of Ceph 16",
            )
        return _version(address, written)

    def head(self, address: str) -> ObjectInfo | None:
        """Returns the object's size, date and ETag, or None if there is no object."""
        base.split_address(address)
        try:
            with clients.translated(address):
                found = self._client().head(address)
        except NotFound:
            return None
        return ObjectInfo(address, found["size"], found["last_modified"], found["e_tag"])

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        share: tuple[int, int] = (0, 1),
        sized: bool = True,
        streamed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the files under a prefix in batches of LISTING_SCHEMA, always with sizes.

        A listing that is not `streamed` reads directories one by one, each into memory. `memory:`
        is always streamed if it is `recursive`: all its keys are addresses.

        A key of S3 that is not an address is not regular. This includes a key that ends in a slash;
        but below its prefix, a `streamed` listing returns such a key without the slash. On
        `az://`, any other key that is not an address raises Failed (`storage_error`), which
        names the key.
        """
        del sized
        base.split_prefix(prefix)
        is_whole = recursive and (streamed or isinstance(self._client(), MemoryStore))
        if is_whole:
            batches = self._streamed(prefix)
        else:
            batches = self._by_directories(prefix, recursive=recursive)
        return batches if share == (0, 1) else (_shared(batch, share) for batch in batches)

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        """Returns the size and date of each address, with one request for each. Raises InvalidInput
        for a key that is no address: there may be an object, which no request here can name."""
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            return base.sizes_of(addresses, pool.map(self.head, addresses))

    def list_prefixes(self, prefix: str = "") -> builtins.list[str]:
        """Returns the immediate parts below `prefix` that hold objects, sorted, each ending in
        `/`."""
        base.split_prefix(prefix)
        _, inner = self._directory(prefix)
        return sorted(name for name in inner if requests.is_address(name.removesuffix("/")))

    def sign_put(self, address: str, *, lasts: timedelta) -> str | None:
        """Returns a URL that accepts the object's bytes, for seven days at most. It can be used
        more than once, and each use overwrites the object. None for `memory:`, and for Azure, which
        wants a header (`x-ms-blob-type`) besides."""
        if self.url.startswith("az:"):
            base.split_address(address)
            return None
        return self._sign("PUT", address, min(lasts, _SIGNED_MAX))

    def sign_get(
        self, address: str, *, lasts: timedelta, method: Literal["GET", "HEAD"] = "GET"
    ) -> str | None:
        """Returns a URL that serves the object's bytes or headers. None for `memory:`, and if
        `lasts` is longer than seven days."""
        return None if lasts > _SIGNED_MAX else self._sign(method, address, lasts)

    def _sign(
        self, method: Literal["GET", "HEAD", "PUT"], address: str, lasts: timedelta
    ) -> str | None:
        base.split_address(address)
        client = self._client()
        if isinstance(client, MemoryStore):
            return None
        if method == "HEAD" and isinstance(client, AzureStore):
            # Azure refuses what obstore signs for HEAD; a signature for reading allows both.
            method = "GET"
        with clients.translated(address):
            return obstore.sign(client, method, address, lasts)

    def delete(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """Deletes objects. If an object is missing, S3 confirms the delete: it is `deleted`."""
        outcomes: dict[str, DeleteOutcome] = {}
        allowed = []
        for address in addresses:
            try:
                base.split_address(address)
                allowed.append(address)
            except InvalidInput as error:
                outcomes[address] = DeleteOutcome(address, "failed", error.message)
        starts = range(0, len(allowed), _DELETE_KEYS_MAX)
        batches = [allowed[start : start + _DELETE_KEYS_MAX] for start in starts]
        delete = deletes_of(self.url, self.effective_options()).delete
        if len(batches) == 1:
            found = [delete(batches[0])]
        else:
            with ThreadPoolExecutor(_DELETES_AT_ONCE) as pool:
                found = builtins.list(pool.map(delete, batches))
        outcomes.update((each.address, each) for each in chain.from_iterable(found))
        return [outcomes[address] for address in addresses]

    def move(self, moves: Sequence[tuple[str, str]]) -> builtins.list[DeleteOutcome]:
        """Moves objects: the storage copies them, then the originals with complete copies are
        deleted. Each copy is three requests, on Azure five. S3 copies objects of up to 5 GiB."""
        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            copied = builtins.list(pool.map(lambda move: self._copy(*move), moves))
        deleted = self.delete([each.address for each in copied if each.outcome == "moved"])
        gone = {each.address: each for each in deleted}
        return [
            gone[each.address] if _has_failed(gone.get(each.address)) else each for each in copied
        ]

    def retained(self) -> Retained:
        """Returns what the bucket says of its versioning, or Azure's account of its soft delete.
        `memory:` keeps nothing."""
        client = self._client()
        if isinstance(client, S3Store):
            return retained.bucket_retained(self._bucket()[0])
        if isinstance(client, AzureStore):
            return retained.account_retained(self._account_url(), dict(self.effective_options()))
        return Retained("no", "memory keeps no deleted objects")

    def _account_url(self) -> str | None:
        """Returns the URL of an object that need not exist: it begins with the account's. None if
        the credentials sign nothing."""
        try:
            return self.sign_get("any", lasts=_ACCOUNT_URL_LASTS)
        except Failed:
            return None

    @property
    def deletes_versions(self) -> bool:
        """False for Azure."""
        return not self.url.startswith("az:")

    def delete_versions(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """Deletes versions of S3: a request for each address, and two for a thousand versions."""
        if not isinstance(self._client(), S3Store):
            return [DeleteOutcome(address, "missing") for address in addresses]
        bucket, root = self._bucket()
        return retained.delete_versions(bucket, root, addresses)

    def hidden(self, prefix: str) -> Iterator[builtins.list[str]]:
        """Yields the hidden addresses of S3 by one listing of all versions under the prefix."""
        base.split_prefix(prefix)
        if not isinstance(self._client(), S3Store):
            return
        bucket, root = self._bucket()
        try:
            yield from retained.hidden(bucket, root, prefix)
        except requests.FAILURES as error:
            raise Failed(
                "storage_error",
                f"the versions under {prefix or self.url} cannot be listed: {error}",
            ) from error

    def _copy(self, source: str, target: str) -> DeleteOutcome:
        try:
            base.split_address(source)
            base.split_address(target)
        except InvalidInput as error:
            return DeleteOutcome(source, "failed", error.message)
        return Copier(self._client(), self.head, sign_head(self.sign_get)).copy(source, target)

    def _streamed(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """Yields all files under a prefix, in the order of their keys."""
        client = self._client()
        last = ""
        with clients.translated(prefix or self.url):
            try:
                stream = client.list(
                    prefix or None, chunk_size=base.LISTING_ROWS_MAX, return_arrow=True
                )
                for batch in map(pa.record_batch, stream):
                    rows = _listing(batch, marker=prefix.removesuffix("/"))
                    last = _last(rows) or last
                    yield rows
            except InvalidPathError as error:
                self._require_s3(prefix, error)
        if isinstance(client, S3Store):
            # S3 lists keys in order, so that the listing can continue after the last one. Usually
            # nothing follows, and the answer says so.
            yield from self._listed_by_key(prefix, after=last)

    def _by_directories(self, prefix: str, *, recursive: bool) -> Iterator[pa.RecordBatch]:
        """Yields the files under a prefix, one directory after the other.

        obstore drops the slash at a key's end. Listed by directories, the key `x/` is in the
        directory `x/`, so that `_listing` can tell it from the key `x`.
        """
        waiting = [prefix]
        while waiting:
            batches, inner = self._directory(waiting.pop())
            yield from batches
            for name in inner:
                if not requests.is_address(name.removesuffix("/")):
                    yield from self._listed_by_key(name)
                elif recursive:
                    waiting.append(name)

    def _directory(self, prefix: str) -> tuple[builtins.list[pa.RecordBatch], builtins.list[str]]:
        """Returns the files directly under a prefix, and the parts below it that hold files.

        On S3, a directory of one page is read by a request of our own, whose answer is checked.
        obstore reads longer ones, since it is faster. What follows its last key is asked once more.
        """
        if not isinstance(self._client(), S3Store):
            return self._directory_by_obstore(prefix)
        bucket, root = self._bucket()
        pages = bucket.list_keys(root + prefix, delimited=True)
        first = next(pages)
        batches: builtins.list[pa.RecordBatch] = []
        inner: builtins.list[str] = []
        if first.token is None:
            pages = iter([first])
        else:
            try:
                batches, inner = self._directory_by_obstore(prefix)
            except InvalidPathError:
                pages = chain([first], pages)
            else:
                ends = [*inner[-1:], *(_last(rows) for rows in batches[-1:])]
                last = max(ends, key=str.encode, default="")
                pages = bucket.list_keys(root + prefix, delimited=True, after=_key(root, last))
        known = set(inner)
        for page in pages:
            batches += _page_listing(root, page)
            found = (name.removeprefix(root) for name in page.prefixes)
            inner += [name for name in found if name not in known]
        return batches, inner

    def _directory_by_obstore(
        self, prefix: str
    ) -> tuple[builtins.list[pa.RecordBatch], builtins.list[str]]:
        """Returns the entries of a directory as obstore lists them. On S3, raises InvalidPathError
        if a key there is not an address."""
        with clients.translated(prefix or self.url):
            try:
                found = self._client().list_with_delimiter(prefix or None, return_arrow=True)
            except InvalidPathError as error:
                self._require_s3(prefix, error)
                raise
        batches = pa.table(found["objects"]).to_batches(base.LISTING_ROWS_MAX)
        marker = prefix.removesuffix("/")
        return [_listing(batch, marker=marker) for batch in batches], _prefixes(found)

    def _require_s3(self, prefix: str, error: InvalidPathError) -> None:
        """Raises Failed `storage_error` unless the storage can be listed key by key."""
        if not isinstance(self._client(), S3Store):
            raise _stray(f"{self.url}/{prefix}", error) from error

    def _listed_by_key(self, prefix: str, *, after: str = "") -> Iterator[pa.RecordBatch]:
        """Yields the files under a prefix whose keys follow the address `after`, from S3."""
        bucket, root = self._bucket()
        for page in bucket.list_keys(root + prefix, after=_key(root, after)):
            # obstore has listed the key `after/` as `after`.
            yield from _page_listing(root, page, without=f"{root}{after}/" if after else "")

    def _bucket(self) -> tuple[requests.Bucket, str]:
        """Returns the bucket of S3, and the prefix of all keys of this storage."""
        return requests.bucket_of(self.url, self.effective_options())

    def _pieces(
        self, address: str, start: int, end: int | None, etag: str | None
    ) -> Iterator[bytes]:
        """Returns an iterator. Its first piece is fetched at once, so that the call itself raises
        errors."""
        first, size = self._piece(address, start, end, etag)
        stop = size if end is None else min(end, size)
        position = start + _length(first)
        return chain(_taken(first), self._more(address, position, stop, etag))

    def _more(self, address: str, start: int, stop: int, etag: str | None) -> Iterator[bytes]:
        position = start
        while position < stop:
            piece, _ = self._piece(address, position, stop, etag)
            if not piece:
                # It is shorter now. Or the storage sends nothing, and would be asked for ever.
                raise base.changed(address)
            position += _length(piece)
            yield from _taken(piece)

    def _piece(
        self, address: str, start: int, end: int | None, etag: str | None
    ) -> tuple[deque[bytes], int]:
        """Returns the bytes from `start` on, at most CHUNK_BYTES, in slices, and the whole object's
        size. The answer is read to its end here, in slices: as a whole, it would be in memory twice
        while obstore joins it."""
        stop = start + base.CHUNK_BYTES if end is None else min(end, start + base.CHUNK_BYTES)
        try:
            with clients.translated(address):
                options: GetOptions = {"range": (start, stop)}
                if etag is not None:
                    options["if_match"] = etag
                found = obstore.get(self._client(), address, options=options)
                slices = found.stream(min_chunk_size=_SLICE_BYTES)
                return deque(map(bytes, slices)), found.meta["size"]
        except Failed:
            # Storages refuse a range that begins past the end of the object.
            size = self._size(address, etag)
            if start >= size:
                return deque(), size
            raise

    def _size(self, address: str, etag: str | None) -> int:
        found = self.head(address)
        if found is None:
            raise base.not_found(address)
        if etag not in (None, found.etag):
            raise base.changed(address)
        return found.size_bytes

    def _client(self) -> clients.Client:
        return clients.connect(self.url, self.effective_options())


def _length(pieces: deque[bytes]) -> int:
    """Returns the number of bytes in all pieces."""
    return sum(map(len, pieces))


def _has_failed(outcome: DeleteOutcome | None) -> bool:
    return outcome is not None and outcome.outcome == "failed"


def _begin(pieces: Iterator[bytes], bytes_max: int) -> tuple[deque[bytes], bool]:
    """Takes pieces up to the first byte above `bytes_max`. Returns them, and whether they are
    all."""
    start: deque[bytes] = deque()
    size_bytes = 0
    for piece in pieces:
        start.append(piece)
        size_bytes += len(piece)
        if size_bytes > bytes_max:
            return start, False
    return start, True


def _taken(pieces: deque[bytes]) -> Iterator[bytes]:
    """Yields the pieces, and keeps none of them."""
    while pieces:
        yield pieces.popleft()


def _from_a_thread(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the same pieces, made in another thread.

    obstore asks for the pieces inside its own runtime. There, no code may wait for another answer
    of obstore, and the pieces may be the stream of another storage.
    """
    with ThreadPoolExecutor(1) as pool:
        while (piece := pool.submit(next, pieces, None).result()) is not None:
            yield piece


def _version(address: str, found: ObjectMeta | PutResult) -> str:
    """Returns the version as JSON: ETag and version id, because some storages compare the one and
    some the other. Raises Failed (`storage_error`) if there is no ETag."""
    marks = {"e_tag": found["e_tag"], "version": found["version"]}
    if marks["e_tag"] is None:
        raise Failed(
            "storage_error",
            f"the storage gives {address} no ETag, so that it cannot be replaced conditionally",
            address=address,
        )
    return json.dumps({name: mark for name, mark in marks.items() if mark is not None})


def _shared(batch: pa.RecordBatch, share: tuple[int, int]) -> pa.RecordBatch:
    """Returns the rows of a share."""
    names = (address.rpartition("/")[2] for address in texts(batch.column("address")))
    mask = [base.in_share(name, share) for name in names]
    return batch.filter(pa.array(mask, pa.bool_()))


def _last(rows: pa.RecordBatch) -> str:
    """Returns the last address of a batch; "" if it is empty."""
    return str(rows.column("address")[-1].as_py()) if rows.num_rows else ""


def _key(root: str, address: str) -> str:
    """Returns the key of an address in a listing; "" for none."""
    return f"{root}{address.removeprefix('/')}" if address else ""


def _prefixes(found: ListResult[arro3.core.Table]) -> list[str]:
    return [f"{name}/" for name in found["common_prefixes"]]


def _stray(place: str, error: InvalidPathError) -> Failed:
    """Returns the error for a listing that cannot continue past a key."""
    return Failed(
        "storage_error",
        f"{place} cannot be listed: a key there is not an address ({clients.explained(error)}), so "
        "that the keys beside it are unknown. Nothing was deleted. If that object is not needed, "
        f"delete it by other means; otherwise rename it",
    )


def _listing(batch: pa.RecordBatch, *, marker: str) -> pa.RecordBatch:
    """Converts a batch of obstore's listing to LISTING_SCHEMA. A row with the path `marker`, which
    is that of the listed directory, is a key that ends in a slash: obstore drops the slash."""
    is_marker = pc.equal(batch.column("path"), pa.scalar(marker, pa.string()))
    columns = [
        pc.if_else(is_marker, pa.scalar(f"{marker}/", pa.string()), batch.column("path")),
        batch.column("size").cast(pa.int64()),
        batch.column("last_modified").cast(pa.timestamp("us", "UTC")),
        pc.invert(is_marker),
        pa.nulls(batch.num_rows, pa.string()),  # obstore does not return them
    ]
    return pa.RecordBatch.from_arrays(columns, schema=base.LISTING_SCHEMA)


def _page_listing(
    root: str, page: requests.KeyPage, *, without: str = ""
) -> builtins.list[pa.RecordBatch]:
    """Converts a page of keys, except one, to batches of LISTING_SCHEMA."""
    objects = [each for each in page.objects if each.key != without]
    # The key of the root itself has an empty address, and is listed as a slash.
    addresses = [each.key.removeprefix(root) or "/" for each in objects]
    columns: builtins.list[pa.Array[Any]] = [
        pa.array(addresses, pa.string()),
        pa.array([each.size_bytes for each in objects], pa.int64()),
        pa.array([each.last_modified for each in objects], pa.timestamp("us", "UTC")),
        pa.array([requests.is_address(address) for address in addresses], pa.bool_()),
        pa.array([each.storage_class for each in objects], pa.string()),
    ]
    rows = pa.Table.from_arrays(columns, schema=base.LISTING_SCHEMA)
    return rows.to_batches(base.LISTING_ROWS_MAX) if objects else []
