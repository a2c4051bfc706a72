"""A repository that has something of everything, for pages: a history with merges and expired
commits, refs in every state, projects, collections, runs, a purge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.engines import INLINE
from tests.support.templates import AGE, date_files

NAME: Final = "lake"
HOSTILE: Final = "<script>alert(1)</script>"
"""What nobody's page may run."""


def fill_lake(
    store: Store, *, name: str = NAME, days: int = 120, odd: str = HOSTILE, scale: int = 1
) -> Repository:
    """A repository with a commit on most days, of which the policy lets the old ones go. `odd` is
    in a message, a committer and a collection's name; files are `scale` times as large."""
    lake = store.create_repository(name)
    now = datetime.now(UTC)
    lake.objects.put("main", "readme.txt", b"hello")
    lake.commits.commit("main", "First light", date=now - timedelta(days=days + 2), committer="ada")
    for branch in ("dev", "user-ada", "user-bob"):
        lake.branches.create(branch, "main")
    for day in range(days, 0, -1):
        branch = ("main", "dev", "main", "user-ada", "dev", "user-bob")[day % 6]
        path = f"tables/{branch}/day={day:03d}.parquet"
        lake.objects.put(branch, path, b"x" * (scale * (1000 + 37 * day)))
        if day % 3 == 0 and day + 18 <= days:
            lake.objects.delete(branch, f"tables/{branch}/day={day + 18:03d}.parquet")
        date = now - timedelta(days=day)
        lake.commits.commit(branch, f"Add day {day}", date=date, committer="etl")
        if day % 30 == 4:
            lake.commits.merge("dev", "main", date=date + timedelta(hours=2), committer="ada")
    _make_refs(lake, now, odd)
    _make_collections(lake, now, odd)
    lake.retention.set(
        {
            "default": "14d",
            "branches": {"main": {"keep_within": "30d", "keep_monthly": 3}, "user-*": "3d"},
        }
    )
    return lake


def _make_refs(lake: Repository, now: datetime, odd: str) -> None:
    lake.tags.create("v1.0", "main")
    lake.tags.create("v1.1-rc", "main~3", expires_at=now + timedelta(days=20))
    lake.branches.create("experiment", "main~2", expires_at=now + timedelta(days=2))
    for name in ("dropped", "also-dropped"):
        lake.branches.create(name, "dev")
        lake.branches.delete(name)
    lake.tags.create("old", "dev~4")
    lake.tags.delete("old")
    lake.retention.hold("dev~12", "audit of the second quarter")
    lake.objects.put("user-bob", "hostile", b"x")
    lake.commits.commit("user-bob", f"{odd} in a message", committer=odd)


def _make_collections(lake: Repository, now: datetime, odd: str) -> None:
    project = lake.projects.create("genomes")
    inner = lake.projects.create("2026", parent_id=project.project_id)
    dropped = lake.projects.create("abandoned", parent_id=project.project_id)
    lake.collections.create(inner.project_id, "reference")
    lake.collections.create(inner.project_id, odd.replace("/", "-"))
    lake.collections.create(inner.project_id, "soon over", expires_at=now + timedelta(days=3))
    gone = lake.collections.create(inner.project_id, "superseded")
    lake.collections.delete(gone.collection_id)
    lake.projects.delete(dropped.project_id)


def leave_garbage(
    lake: Repository, *, branch: str = "dev", count: int = 40, scale: int = 1
) -> None:
    for number in range(count):
        lake.objects.put(branch, f"late/{number}", b"y" * (scale * (5000 + number)))
        lake.objects.delete(branch, f"late/{number}")


def collector_of(store: Store, lake: Repository, *, allow_share: bool = True) -> Collector:
    """A collector for which nothing is too young: the files that the store has by now are dated
    back. Nothing is too much for it, either, unless `allow_share` is false."""
    assert store.directory is not None
    date_files(store.directory, datetime.now(UTC) - AGE)
    return Collector(
        EmbeddedRepository(lake.context, store_id=store.store_id),
        engine=INLINE,
        options=RunOptions.of(
            store.settings, grace=timedelta(0), unsafe=True, allow_share=allow_share
        ),
    )


def collect(store: Store, lake: Repository) -> tuple[str, str]:
    """Makes one run that sweeps, then one that plans to delete garbage. Returns their ids."""
    swept = collector_of(store, lake).run()
    assert swept.state == "swept", swept
    leave_garbage(lake)
    return swept.run_id, collector_of(store, lake).plan().run_id
