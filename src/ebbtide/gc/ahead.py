"""Files that a task is about to read, and directories that it is about to list, fetched while it
works on those before them.

What nobody has looked at lately is a wait, on a disk as on S3, and a task looks at thousands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar, cast

import pyarrow as pa

from ebbtide.errors import EbbtideError
from ebbtide.formats.base import ListingItem
from ebbtide.storage import Storage

_Item = TypeVar("_Item")
_Task = TypeVar("_Task")
_Found = TypeVar("_Found")

AT_ONCE: Final = 8
TOGETHER: Final = 8
"""Files that one thread fetches before it says so: telling costs more than a file from memory."""
BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the files fetched together: after more, the others are read when they are asked for."""
ROWS_MAX: Final = 50_000
"""Of a listing before it is asked for."""


def listed(
    storage: Storage, items: Sequence[ListingItem], *, at_once: int = AT_ONCE
) -> Iterator[pa.RecordBatch]:
    """What `Storage.list` says of each item, in order. With `at_once` of 1 nothing is listed before
    it is asked for."""
    if at_once == 1:
        for item in items:
            yield from _list(storage, item)
        return
    for _, begun in ahead(partial(_begun, storage), items, at_once=at_once):
        yield from chain(*begun)


def _list(storage: Storage, item: ListingItem) -> Iterator[pa.RecordBatch]:
    return storage.list(
        item.prefix,
        recursive=item.recursive,
        share=item.share,
        sized=item.sized,
        streamed=item.streamed,
    )


def _begun(
    storage: Storage, item: ListingItem
) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """The first batches of a listing, and the others, for whoever gets to them."""
    batches = _list(storage, item)
    first: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        first.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_MAX:
            break
    return first, batches


def fetched(
    storage: Storage,
    items: Sequence[_Item],
    address_of: Callable[[_Item], str],
    *,
    at_once: int = AT_ONCE,
) -> Iterator[tuple[_Item, Storage]]:
    """Each item, in order, with the storage to read it from, whose `get` gives what was fetched.
    With `at_once` of 1 nothing is fetched before it is asked for, as is what could not be."""
    if at_once == 1:
        yield from ((item, storage) for item in items)
        return

    def fetch(chosen: Sequence[_Item]) -> dict[str, bytes]:
        return _fetch(storage, [address_of(item) for item in chosen])

    groups = (items[start : start + TOGETHER] for start in range(0, len(items), TOGETHER))
    for chosen, found in ahead(fetch, groups, at_once=at_once):
        given = cast("Storage", _Fetched(storage, found))
        yield from ((item, given) for item in chosen)


def ahead(
    work: Callable[[_Task], _Found], tasks: Iterable[_Task], *, at_once: int
) -> Iterator[tuple[_Task, _Found]]:
    """Each task with what `work` makes of it, in order, by threads that are so many tasks ahead of
    who asks. With `at_once` of 1 nothing is done before it is asked for."""
    if at_once == 1:
        yield from ((task, work(task)) for task in tasks)
        return
    waiting: deque[tuple[_Task, Future[_Found]]] = deque()
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="ahead")
    try:
        for task in tasks:
            waiting.append((task, pool.submit(work, task)))
            if len(waiting) > at_once:
                first, found = waiting.popleft()
                yield first, found.result()
        for first, found in waiting:
            yield first, found.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _fetch(storage: Storage, addresses: Sequence[str]) -> dict[str, bytes]:
    """What is at these addresses, up to the first that can't be read."""
    found: dict[str, bytes] = {}
    total = 0
    try:
        for address in addresses:
            found[address] = storage.get(address)
            total += len(found[address])
            if total > BYTES_MAX:
                break
    except EbbtideError:
        pass
    return found


@dataclass(frozen=True, slots=True)
class _Fetched:
    """The storage, with some files at hand."""

    storage: Storage
    data: Mapping[str, bytes]

    def get(self, address: str) -> bytes:
        """See `Storage.get`."""
        found = self.data.get(address)
        return self.storage.get(address) if found is None else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)
