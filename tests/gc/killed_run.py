"""A collector run that kills its own process, or one that it works with: a program of
`tests.support.forking`.

`engine` names the engine of the run, and `action` is `plan` or `sweep`. `moment` and `where` say
when a process dies. With `start STEP` or `end STEP` the driver dies. With `before` or `after` and
an address, the process that deletes the address kills the `victim` and waits for its own end. It
does so before it calls the storage, or before it records the outcome. Deletes go one by one. A
driver that survives writes the error of its run beside the store (`ERROR_SUFFIX`).
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import psutil
import pyarrow as pa

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.sweeping import outcomes
from ebbtide.storage import Content, DeleteOutcome, ObjectInfo, Retained, Storage
from ebbtide.storage.classes import StorageClass
from tests.support.copies import OpenedWorld
from tests.support.engines import ENGINES
from tests.support.histories import GRACE

WAIT_SECONDS = 120
ERROR_SUFFIX: Final = ".error"

Victim = Literal["driver", "jvm", "worker"]
"""`worker`: the process that deletes, where that is one of Spark's."""


@dataclass(frozen=True)
class KillingStorage:
    """The inner storage, until the address is deleted or replaced. Picklable."""

    inner: Storage
    driver: int
    victim: Victim
    moment: str
    address: str

    @property
    def url(self) -> str:
        """The inner storage's."""
        return self.inner.url

    @property
    def shared_between_processes(self) -> bool:
        """The inner storage's."""
        return self.inner.shared_between_processes

    def get(self, address: str) -> bytes:
        """See `Storage.get`."""
        return self.inner.get(address)

    def get_versioned(self, address: str) -> tuple[bytes, str]:
        """See `Storage.get_versioned`."""
        return self.inner.get_versioned(address)

    def stream(
        self, address: str, *, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Iterator[bytes]:
        """See `Storage.stream`."""
        return self.inner.stream(address, start=start, end=end, etag=etag)

    def put(
        self, address: str, data: Content, *, create_only: bool = False, durable: bool = True
    ) -> None:
        """See `Storage.put`."""
        self.inner.put(address, data, create_only=create_only, durable=durable)

    def replace(self, address: str, data: bytes, *, version: str) -> str:
        """See `Storage.replace`."""
        if address != self.address:
            return self.inner.replace(address, data, version=version)
        if self.moment == "after":
            self.inner.replace(address, data, version=version)
        raise self._killed()

    def head(self, address: str) -> ObjectInfo | None:
        """See `Storage.head`."""
        return self.inner.head(address)

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = True,
        share: tuple[int, int] = (0, 1),
        sized: bool = True,
        streamed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """See `Storage.list`."""
        return self.inner.list(
            prefix, recursive=recursive, share=share, sized=sized, streamed=streamed
        )

    def sizes(self, addresses: Sequence[str]) -> pa.RecordBatch:
        """See `Storage.sizes`."""
        return self.inner.sizes(addresses)

    def sign_put(self, address: str, *, lasts: timedelta) -> str | None:
        """See `Storage.sign_put`."""
        return self.inner.sign_put(address, lasts=lasts)

    def sign_get(
        self, address: str, *, lasts: timedelta, method: Literal["GET", "HEAD"] = "GET"
    ) -> str | None:
        """See `Storage.sign_get`."""
        return self.inner.sign_get(address, lasts=lasts, method=method)

    def list_prefixes(self, prefix: str = "") -> builtins.list[str]:
        """See `Storage.list_prefixes`."""
        return self.inner.list_prefixes(prefix)

    def move(self, moves: Sequence[tuple[str, str]]) -> builtins.list[DeleteOutcome]:
        """See `Storage.move`."""
        return self.inner.move(moves)

    def delete(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """Kill the victim where it was asked for; this process ends with it, or the JVM ends it."""
        if self.address not in addresses:
            return self.inner.delete(addresses)
        if self.moment == "after":
            self.inner.delete(addresses)
        raise self._killed()

    def retained(self) -> Retained:
        """See `Storage.retained`."""
        return self.inner.retained()

    @property
    def deletes_versions(self) -> bool:
        """The inner storage's."""
        return self.inner.deletes_versions

    def delete_versions(self, addresses: Sequence[str]) -> builtins.list[DeleteOutcome]:
        """See `Storage.delete_versions`."""
        return self.inner.delete_versions(addresses)

    @property
    def has_classes(self) -> bool:
        """See `Storage.has_classes`."""
        return self.inner.has_classes

    def classes(self, addresses: Sequence[str]) -> builtins.list[StorageClass | None]:
        """See `Storage.classes`."""
        return self.inner.classes(addresses)

    def hidden(self, prefix: str) -> Iterator[builtins.list[str]]:
        """See `Storage.hidden`."""
        return self.inner.hidden(prefix)

    def _killed(self) -> AssertionError:
        os.kill(self._pid(), signal.SIGKILL)
        time.sleep(WAIT_SECONDS)
        return AssertionError(f"this process outlived the {self.victim}")

    def _pid(self) -> int:
        if self.victim == "worker":
            return os.getpid()
        if self.victim == "driver":
            return self.driver
        started = psutil.Process(self.driver).children()
        (jvm,) = (each for each in started if "java" in each.name())
        return jvm.pid


def main(
    store: str,
    now: str,
    engine: str,
    action: str,
    moment: str,
    where: str,
    victim: Victim = "driver",
) -> None:
    """Run until the kill."""
    world = OpenedWorld(Path(store), now=datetime.fromisoformat(now))
    repository: EmbeddedRepository = world.format()
    if moment in ("before", "after"):
        repository.storage = KillingStorage(repository.storage, os.getpid(), victim, moment, where)
        outcomes.ADDRESSES_PER_BATCH = 1  # type: ignore[misc]

    def observe(step: str, event: str) -> None:
        if (event, step) == (moment, where):
            os.kill(os.getpid(), signal.SIGKILL)

    collector = Collector(
        repository,
        engine=ENGINES[engine],
        options=RunOptions.of(world.settings, grace=GRACE),
        observer=observe,
    )
    report = collector.plan() if action == "plan" else collector.sweep()
    Path(f"{store}{ERROR_SUFFIX}").write_text(json.dumps(report.error))
