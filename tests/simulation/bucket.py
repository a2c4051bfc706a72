"""A bucket in memory whose calls are points of a history.

Not a point: reading what never changes once it is written, and that only its writer knows of.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

import pyarrow as pa

from ebbtide.formats.icechunk.layout import LOGS_PREFIX, MANIFESTS_PREFIX, SNAPSHOTS_PREFIX
from ebbtide.formats.icechunk.snapshots import CHUNKS_PREFIX
from ebbtide.formats.lakefs.layout import COMMITTED_PREFIX
from ebbtide.storage import Content, DeleteOutcome, ObjectInfo
from ebbtide.store.content.layout import DATA_PREFIX, RANGES_PREFIX, TREES_PREFIX
from ebbtide.store.repositories.owner import read_owner
from tests.simulation.scheduler import ANY, BATCH, READ, Scheduler, Task, Violation
from tests.support.memory import SCHEME, Bucket, MemoryStorage, Stored

LAKE_PREFIX: Final = "lake/"
CONTENT: Final = (
    *(DATA_PREFIX, RANGES_PREFIX, TREES_PREFIX),
    *(CHUNKS_PREFIX, MANIFESTS_PREFIX, SNAPSHOTS_PREFIX, LOGS_PREFIX),
    COMMITTED_PREFIX,
)
"""What never changes once it is written, but for parents of Icechunk's snapshots of version 1."""
COPY_PREFIX: Final = "copy/"
ON_COPY: Final = "on copy"
"""The kind of an operation that works on a copy, and has no business elsewhere."""
MOUNTED: Final = "mounted"
"""The bucket's other name: after a move, repositories are found by it alone."""
RUNS: Final = "_ebbtide/gc/runs/"
TOLD: Final = ("deleted", "intended", "quarantine", "fence.json", "report.json", "plan.json")
"""Files of a run that others than the run itself read."""

RUN_KINDS: Final = ("run", "run aside", "sweep", "copied run")
GRACE: Final = timedelta(hours=1)
REGISTERED: Final = timedelta(hours=1)
"""A write that takes longer may have no registration any more."""

_Answer = TypeVar("_Answer")


def is_noticed(address: str) -> bool:
    """Whether others may care when it is written or read."""
    if address.startswith(CONTENT):
        return False
    if address.startswith(RUNS):
        parts = address.split("/")
        return len(parts) > 4 and parts[4] in TOLD
    return not address.startswith("_ebbtide/gc/index/")


@dataclass(slots=True)
class SimulatedBucket(Bucket):
    """Gives out storages whose calls are points, and plain ones."""

    scheduler: Scheduler = field(kw_only=True)
    shown: str = ""
    """The name by which it is found, where it is not the first one."""
    late: set[str] = field(default_factory=set)
    """Files that were written when nothing was registered for them any more."""
    after_the_end: dict[str, Task] = field(default_factory=dict)
    """Who wrote files when their repository had been purged."""
    grace: timedelta = GRACE
    """The age below which a run takes nothing."""
    moved_by: int | None = None
    """The number of the operation that gave it another name."""

    def storage(self, url: str) -> MemoryStorage:
        """As the processes of the history see it. Raises Violation for a process that began after
        a move, and goes where the bucket was before."""
        task = self.scheduler.current
        name = url.removeprefix(SCHEME).partition("/")[0]
        began_later = task is not None and (self.moved_by or 0) < task.number
        if self.moved_by is not None and began_later and name != self.shown:
            raise Violation("place", f"a run goes to {url}: the bucket is {self.shown} by now")
        plain = self.plain(url)
        return SimulatedStorage(plain.url, self, plain.prefix)

    def plain(self, url: str) -> MemoryStorage:
        """One whose calls nobody disturbs."""
        place = url.removeprefix(SCHEME).partition("/")[2].strip("/")
        return MemoryStorage(url, self, f"{place}/" if place else "")

    @property
    def names(self) -> dict[str, Bucket]:
        """It, by each name that it may have."""
        return {self.name: self, MOUNTED: self}

    def move(self, number: int) -> str:
        """Give it its other name, by the operation of that number."""
        self.shown, self.moved_by = (self.name if self.shown == MOUNTED else MOUNTED), number
        return self.shown

    def move_back(self) -> None:
        """It has its first name, as if it never had another one."""
        self.shown, self.moved_by = self.name, None


class SimulatedStorage(MemoryStorage):
    """The objects of a bucket, as a process of the history sees them."""

    @property
    def _plain(self) -> MemoryStorage:
        return MemoryStorage(self.url, self.bucket, self.prefix)

    def _shown(self, address: str) -> str:
        """Where an address is in the repository, whatever part of it this storage is of. Raises
        Violation for one outside of the copy that a process works on."""
        key, task = f"{self.prefix}{address}", self._scheduler.current
        if task is not None and task.kind == ON_COPY and not key.startswith(COPY_PREFIX):
            raise Violation("place", f"a run over a copy goes to {key}")
        return key.removeprefix(LAKE_PREFIX)

    @property
    def _bucket(self) -> SimulatedBucket:
        assert isinstance(self.bucket, SimulatedBucket)
        return self.bucket

    @property
    def _scheduler(self) -> Scheduler:
        return self._bucket.scheduler

    def get(self, address: str) -> bytes:
        return self._read("get", address, lambda: self._plain.get(address))

    def get_versioned(self, address: str) -> tuple[bytes, str]:
        return self._read("get", address, lambda: self._plain.get_versioned(address))

    def stream(
        self, address: str, *, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Iterator[bytes]:
        """See `Storage.stream`. Others may delete it before its first byte."""
        return self._scheduler.call(
            f"stream {self._shown(address)}",
            lambda: self._plain.stream(address, start=start, end=end, etag=etag),
            allowed=READ,
            effect=False,
        )

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        try:
            self._scheduler.call(
                f"put {self._shown(address)}",
                lambda: self._plain.put(address, data, create_only=create_only, durable=durable),
                effect=is_noticed(self._shown(address)),
            )
        finally:
            task, now = self._scheduler.current, self._scheduler.clock.now
            owner = read_owner(self._plain) if self.prefix == LAKE_PREFIX else None
            if task is not None and owner is not None and owner.closed:
                self._bucket.after_the_end[f"{self.prefix}{address}"] = task
        if task is not None and now - task.began >= REGISTERED:
            self._bucket.late.add(f"{self.prefix}{address}")

    def replace(self, address: str, data: bytes, *, version: str) -> str:
        return self._scheduler.call(
            f"replace {self._shown(address)}",
            lambda: self._plain.replace(address, data, version=version),
        )

    def head(self, address: str) -> ObjectInfo | None:
        return self._read("head", address, lambda: self._plain.head(address))

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        for address in addresses:
            self._shown(address)
        self._scheduler.point(f"sizes of {len(addresses)}")
        return self._plain.sizes(addresses)

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        share: tuple[int, int] = (0, 1),
        sized: bool = True,
        streamed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """See `Storage.list`. Much may happen before what it said is used."""
        del streamed
        found = [*self._plain.list(prefix, recursive=recursive, share=share, sized=sized)]
        self._scheduler.call(
            f"list {self._shown(prefix)}", lambda: None, allowed=READ, effect=False
        )
        yield from found

    def delete(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        plain = self._plain
        return self._batch("delete", addresses, lambda place: plain.delete([addresses[place]]))

    def move(self, moves: Sequence[tuple[str, str]]) -> builtins.list[DeleteOutcome]:
        plain = self._plain
        sources = [source for source, _ in moves]
        return self._batch("move", sources, lambda place: plain.move([moves[place]]))

    def _batch(
        self,
        method: str,
        addresses: Sequence[str],
        take: Callable[[int], builtins.list[DeleteOutcome]],
    ) -> builtins.list[DeleteOutcome]:
        """Each part of a batch may fail by itself, and the process sleep between two."""
        outcomes: builtins.list[DeleteOutcome] = []
        scheduler, count = self._scheduler, len(addresses)
        failed, lost = count, False
        for place, address in enumerate(addresses):
            self._require_old(address)
            text = f"{method} {place + 1} of {count}: {self._shown(address)}"
            fault = scheduler.point(text, allowed=ANY if place else BATCH, effect=True)
            if fault in ("fail", "part"):
                failed = 0 if fault == "fail" else count // 2
            lost = lost or fault == "lose"
            if place >= failed:
                outcomes.append(DeleteOutcome(address, "failed", "made to fail"))
                continue
            outcomes += take(place)
            if fault == "die":
                scheduler.die()
        if lost:
            return [DeleteOutcome(each, "failed", "its answer was lost") for each in addresses]
        return outcomes

    def _require_old(self, address: str) -> None:
        """A run takes no file that is younger than the grace. Raises Violation."""
        key, task = f"{self.prefix}{address}", self._scheduler.current
        stored = self.bucket.objects.get(key)
        if task is None or stored is None or key in self._bucket.late:
            return
        age = self._scheduler.clock.now - stored.written_at
        if task.kind in RUN_KINDS and address.startswith(CONTENT) and age < self._bucket.grace:
            raise Violation("young", f"a run takes {key} at the age of {age}")

    def _below(self, prefix: str) -> Iterator[tuple[str, Stored]]:
        """See `MemoryStorage`: what is below a prefix is looked up by listings of prefixes."""
        self._shown(prefix)
        return MemoryStorage._below(self, prefix)

    def _read(self, method: str, address: str, work: Callable[[], _Answer]) -> _Answer:
        shown = self._shown(address)
        if not is_noticed(shown):
            self._scheduler.require_alive()
            return work()
        return self._scheduler.call(f"{method} {shown}", work, allowed=READ, effect=False)
