"""Prefetch: threads read the next files, or list the next directories, while a task works.

The first access to a file or directory has to wait, on a disk as on S3, and a task accesses
thousands of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
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
"""The number of files that one thread fetches in one task. Passing a result on costs more than
reading a file that is in the system's cache."""
BYTES_MAX: Final = 4 * 1024 * 1024
"""When a thread has fetched more bytes than this, it fetches no more files of its task. The other
files are read when the caller asks for them."""
ROWS_MAX: Final = 50_000
"""When a listing has this many rows, it waits until the caller asks for more."""


def listed(
    storage: Storage, items: Sequence[ListingItem], *, at_once: int = AT_ONCE
) -> Generator[pa.RecordBatch, None, None]:
    """Yields the batches of `Storage.list` for each item, in order. `at_once` is the number of
    threads that list ahead; with 1, an item is listed only when the caller gets to it."""
    with closing(ahead(partial(_begun, storage), items, at_once=at_once)) as found:
        for _, (first, others) in found:
            with closed_at_end(others):
                yield from chain(first, others)


def _begun(
    storage: Storage, item: ListingItem
) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """Returns the first batches of a listing, and an iterator that lists the others on demand."""
    batches = storage.list(
        item.prefix,
        recursive=item.recursive,
        share=item.share,
        sized=item.sized,
        streamed=item.streamed,
    )
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
) -> Generator[tuple[_Item, Storage], None, None]:
    """Yields each item, in order, with the storage to read its file from. The `get` of this storage
    returns the file that was fetched ahead.

    If a file could not be fetched, `get` reads it again, and raises the error. `at_once` is the
    number of threads that fetch ahead; with 1, nothing is fetched ahead.
    """
    if at_once == 1:
        yield from ((item, storage) for item in items)
        return

    def fetch(chosen: Sequence[_Item]) -> dict[str, bytes]:
        return _fetch(storage, [address_of(item) for item in chosen])

    groups = (items[start : start + TOGETHER] for start in range(0, len(items), TOGETHER))
    with closing(ahead(fetch, groups, at_once=at_once)) as groups_fetched:
        for chosen, found in groups_fetched:
            given = cast("Storage", _Fetched(storage, found))
            yield from ((item, given) for item in chosen)


def ahead(
    work: Callable[[_Task], _Found],
    tasks: Iterable[_Task],
    *,
    at_once: int,
    at_end: Callable[[], object] = lambda: None,
) -> Generator[tuple[_Task, _Found], None, None]:
    """Yields each task with the result of `work`, in order. Threads work up to `at_once` tasks
    ahead of the caller; with 1, a task is done only when the caller gets to it.

    At the end, also after an error, calls `at_end` before it waits for threads that still work, and
    closes `tasks`.
    """
    with closed_at_end(tasks):
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
            at_end()
            pool.shutdown(cancel_futures=True)


def closed_at_end(rows: Iterable[_Item]) -> ExitStack:
    """Returns a context for a block that reads `rows`. At its end, `rows` are closed if they are a
    generator.

    An error that ends the block refers to the generator by its traceback. Without this, the files,
    threads and connections of the generator would stay open until somebody drops the error.
    """
    stack = ExitStack()
    if isinstance(rows, Generator):
        stack.callback(rows.close)
    return stack


def _fetch(storage: Storage, addresses: Sequence[str]) -> dict[str, bytes]:
    """Returns the contents of files by address: up to BYTES_MAX, or up to the first file that
    cannot be read."""
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
    """A storage with the contents of some files in memory."""

    storage: Storage
    data: Mapping[str, bytes]

    def get(self, address: str) -> bytes:
        """Returns the content of a file, from memory if it is there. Raises as `Storage.get`."""
        found = self.data.get(address)
        return self.storage.get(address) if found is None else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)
