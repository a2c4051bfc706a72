"""A repository with everything in it that one can have, and its collector once it is gone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ebbtide.formats.gone import GoneRepository
from ebbtide.gc.options import RunOptions
from ebbtide.gc.removal import Remover
from ebbtide.gc.steps import Observer, silent
from ebbtide.store.database.schema import metadata
from ebbtide.store.embedded import Store
from tests.support.engines import INLINE
from tests.support.world import DAY, World

OUTLASTING = {"store_info", "promised_times", "removals", "signing_keys", "access_keys", "sessions"}
"""Tables that speak of the store, or of repositories that are no more."""


def fill(world: World) -> None:
    """Commits, tags, staged and deleted objects, runs, an export, an upload, a hold, a policy."""
    lake = world.lake
    world.save("main", days_ago=30, put=["a", "b", "c"])
    world.save("main", days_ago=20, put=["d"], delete=["a"])
    lake.branches.create("dev", "main")
    world.save("dev", days_ago=10, put=["e"])
    lake.tags.create("v1", "dev")
    lake.tags.create("v2", "main", expires_at=world.now + DAY)
    lake.branches.delete("dev")
    lake.retention.hold("main", "audit")
    world.keep(default="7d")
    assert world.collect().state == "swept"
    lake.exports.commits()
    project = lake.projects.create("project")
    lake.projects.create("inner", parent_id=project.project_id)
    lake.collections.create(project.project_id, "collection")
    lake.objects.put("main", "staged", b"staged")
    lake.objects.copy("main", "copied", "main", "staged")
    given = lake.addresses.get("main", "uploaded")
    (world.root / given.address).parent.mkdir(parents=True, exist_ok=True)
    (world.root / given.address).write_bytes(b"uploaded")


def expire_repository(world: World) -> str:
    """Puts the repository in the trash, and waits until it is gone. Its id."""
    deleted = world.store.catalog.delete("lake")
    settings = world.settings
    world.clock.advance(
        max(settings.trash_time, settings.lease_ttl, settings.upload_ttl) + timedelta(hours=1)
    )
    return deleted.info.repository_id


def gone_repository(store: Store, ref: str) -> GoneRepository:
    found = store.catalog.find_gone(ref)
    assert found is not None
    return GoneRepository(store.context_of(found), store_id=store.store_id)


def remover(
    store: Store,
    repository: GoneRepository | str,
    *,
    observer: Observer = silent,
    **options: Any,
) -> Remover:
    found = gone_repository(store, repository) if isinstance(repository, str) else repository
    chosen = RunOptions.of(store.settings, **options)
    return Remover(found, engine=INLINE, options=chosen, observer=observer)


def rows(store: Store) -> dict[str, int]:
    with store.metadata.snapshot() as tx:
        counts = {
            table.name: tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
            if table.name not in OUTLASTING
        }
    return {name: count for name, count in counts.items() if count}


def files(world: World) -> set[str]:
    return {str(p.relative_to(world.root)) for p in world.root.rglob("*") if not p.is_dir()}
