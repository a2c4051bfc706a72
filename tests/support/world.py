"""A store with real files and a clock that tests set, and its collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.gc.steps import Observer, silent
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from ebbtide.store.context import CurrentSlice
from ebbtide.store.embedded import DATABASE_FILE, Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.databases import SqliteDatabases
from tests.support.engines import INLINE

START = datetime.now(UTC).replace(microsecond=0) + timedelta(days=400)
"""The injected now of tests: far enough ahead that every file is older than the grace."""

DAY = timedelta(days=1)


AT_ONCE: Final = Settings(lease_ttl=timedelta(0), trash_time=timedelta(0), share_max=1.0)
"""Nothing is promised for later, so that a run takes all that is of no use."""


def collector_of(store: Store, lake: Repository, **options: Any) -> Collector:
    """A collector without a grace, of a repository on a server, whose clock nobody sets."""
    chosen: dict[str, Any] = {"grace": timedelta(0), "unsafe": True, "mode": "clean"} | options
    repository = EmbeddedRepository(lake.context, store_id=store.store_id)
    return Collector(repository, engine=INLINE, options=RunOptions.of(store.settings, **chosen))


SLICES_BEFORE: Final = timedelta(days=401)
"""By how much slices are named older than now: files have dates of the real clock."""


class AgedSlices(CurrentSlice):
    """Slices that are named for the real time."""

    def new_addresses(self, count: int, *, now: datetime) -> list[str]:
        return super().new_addresses(count, now=now - SLICES_BEFORE)


def aged(repository: Repository) -> Repository:
    context = repository.context
    return Repository(replace(context, slices=AgedSlices(context.settings)))


@cache
def empty_database() -> bytes:
    """An SQLite database with the tables, which are empty: a copy takes 1 ms, new tables 30."""
    with TemporaryDirectory() as directory:
        return SqliteDatabases(Path(directory)).template.read_bytes()


class World:
    engine: Engine = INLINE
    """What its collector runs with."""

    aged_slices: bool = True
    """Whether its slices are older than they should be. Runs are clean then: to others, such slices
    are closed off before anything is written to them."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: dict[str, Any] | None = None,
        aged_slices: bool = True,
    ) -> None:
        self.clock = ManualClock(START)
        chosen: dict[str, Any] = {
            "lease_ttl": timedelta(0),
            "trash_time": timedelta(0),
            "share_max": 1.0,
            "run_heartbeat": timedelta(seconds=1),
        }
        self.settings = Settings(**(chosen | (settings or {})))
        self.directory = directory
        (directory / "store").mkdir(parents=True)
        (directory / "store" / DATABASE_FILE).write_bytes(empty_database())
        self.store = Store.init(directory / "store", settings=self.settings, clock=self.clock)
        lake = self.store.create_repository("lake")
        self.aged_slices = aged_slices
        self.lake = aged(lake) if aged_slices else lake
        self.root = directory / "store" / "storage" / "lake"

    @property
    def now(self) -> datetime:
        return self.clock.host_now()

    def save(
        self, branch: str, *, days_ago: float, put: Iterable[str] = (), delete: Iterable[str] = ()
    ) -> str:
        for path in put:
            self.lake.objects.put(branch, path, path.encode())
        for path in delete:
            self.lake.objects.delete(branch, path)
        commit = self.lake.commits.commit(
            branch,
            f"{days_ago} days ago",
            date=self.now - timedelta(days=days_ago),
            allow_empty=True,
        )
        return commit.commit_id

    def keep(self, **policy: Any) -> None:
        self.lake.retention.set(Policy.parse(policy))

    def collector(self, *, observer: Observer = silent, **options: Any) -> Collector:
        """A collector with a grace of an hour, unless `options` say otherwise."""
        mode = "clean" if self.aged_slices else "auto"
        chosen: dict[str, Any] = {"grace": timedelta(hours=1), "mode": mode} | options
        return Collector(
            self.format(),
            engine=self.engine,
            options=RunOptions.of(self.settings, **chosen),
            observer=observer,
        )

    def format(self) -> EmbeddedRepository:
        return EmbeddedRepository(self.lake.context, store_id=self.store.store_id)

    def collect(self, **options: Any) -> RunReport:
        return self.collector(**options).run()

    def swept(self, **options: Any) -> RunReport:
        report = self.collect(**options)
        assert report.state == "swept", report.error
        return report

    def files(self, kind: str = "data") -> set[str]:
        folder = self.root / kind
        return {str(path.relative_to(self.root)) for path in folder.rglob("*") if path.is_file()}

    def contents(self) -> set[str]:
        return {(self.root / address).read_text() for address in self.files()}

    def close(self) -> None:
        self.store.close()


def quarantine_of(report: RunReport) -> Mapping[str, Any]:
    assert report.quarantine is not None
    return report.quarantine


@contextmanager
def temporary_world() -> Iterator[World]:
    """A world for one example of Hypothesis, which shares its test's directory with others."""
    with TemporaryDirectory() as directory, closing(World(Path(directory))) as world:
        yield world
