"""Measures a project of many collections: trashing it, restoring it, listing it.

    .venv/bin/python -m benchmarks.many_collections [--collections 100000] [--directory DIR]
        [--database-url URL]

Fills a project with collections of one file each, which share their content, directly through the
tables. This is not part of the figures. Then times four operations in this process: trashing the
project, restoring it, listing it page by page, and reading for a collector what its collections
keep. Prints the ratio of each to fetching the same rows through SQLAlchemy. No listing can be
faster than that, and trashing must be much faster. Prints also the growth of the process's memory
while it lists. Fails if a state or a number of collections is another than it must be.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from benchmarks import results
from benchmarks.measuring import mib
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.collections.contents import ContentChange, Files
from ebbtide.store.collections.queries import COLLECTIONS, CollectionRow
from ebbtide.store.database.schema import collections
from ebbtide.store.embedded import Store
from ebbtide.store.gc.references import read_kept
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject

MADE = 100_000
BATCH = 10_000
PAGE = 1_000


def fill(lake: Repository, project_id: str, count: int) -> None:
    """Makes `count` collections in a project, with names such as people use, and with the content
    of the first."""
    first = lake.collections.create(
        project_id, "first", ContentChange([Files([NewObject("file", b"x")])])
    )
    metadata = lake.context.metadata
    with metadata.snapshot() as tx:
        row = COLLECTIONS.by_id(tx, first.collection_id)
    assert row is not None
    values = {name: getattr(row, name) for name in CollectionRow.__dataclass_fields__}
    for start in range(1, count, BATCH):
        with metadata.transaction() as tx:
            tx.execute(
                sa.insert(collections),
                [
                    values | {"collection_id": new_id(), "name": f"sample {number:07d}"}
                    for number in range(start, min(start + BATCH, count))
                ],
            )


def fetch_all(lake: Repository, project_id: str) -> int:
    """Fetches every row of the project, in the order of a listing: the practical limit. Returns
    their number."""
    with lake.context.metadata.snapshot() as tx:
        rows = tx.execute(
            sa.select(collections)
            .where(collections.c.project_id == project_id)
            .order_by(collections.c.name, collections.c.collection_id)
        )
        return sum(1 for _ in rows)


def list_all(lake: Repository, project_id: str) -> tuple[int, float]:
    """Lists the project page by page, as the server does. Returns the number of collections, and
    the growth of the process's memory in MiB."""
    process = psutil.Process()
    count, after, largest = 0, ("", ""), 0
    before = process.memory_info().rss
    while page := lake.collections.page(project_id, after=after, amount=PAGE):
        count += len(page)
        after = (page[-1].name, page[-1].collection_id)
        largest = max(largest, process.memory_info().rss)
    return count, mib(largest - before)


def keep_all(lake: Repository) -> int:
    """Reads what the collections keep, as a collector does. Returns the number of refs."""
    settings = lake.context.settings
    with lake.context.metadata.snapshot() as tx:
        kept = read_kept(
            tx,
            lake.info.repository_id,
            now=tx.now(),
            lease_ttl=settings.lease_ttl,
            trash_time=timedelta(days=7),
        )
    return len(kept.refs)


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Returns the seconds that `work` took, and its result."""
    start = time.perf_counter()
    outcome = work()
    return time.perf_counter() - start, outcome


def run(directory: Path, database_url: str | None, count: int) -> dict[str, Any]:
    """Fills the project, then measures. Returns the figures of each operation."""
    settings = Settings(database_url=database_url)
    with Store.init(directory, settings=settings) as store:
        lake = store.create_repository("lake")
        project_id = lake.projects.create("samples").project_id
        fill(lake, project_id, count)
        limit, fetched = timed(lambda: fetch_all(lake, project_id))
        check("fetched", fetched, count)
        print(f"{count:,} collections; fetching their rows: {limit:.2f} s")
        found: dict[str, Any] = {}
        for what, work, expected in (
            ("trash the project", lambda: lake.projects.delete(project_id).state.value, "trashed"),
            ("restore it", lambda: lake.projects.restore(project_id).state.value, "persistent"),
            ("list it by pages", lambda: list_all(lake, project_id), count),
            ("read for a collector", lambda: keep_all(lake), count),
        ):
            seconds, outcome = timed(work)
            memory = None
            if isinstance(outcome, tuple):
                outcome, memory = outcome
            check(what, outcome, expected)
            ratio = seconds / limit
            print(f"{what}: {seconds:.3f} s, {ratio:.3f} x the fetching ({outcome})")
            found[what] = {"seconds": seconds, "ratio": ratio, "growth_mib": memory}
        return {"collections": count, "limit_seconds": limit, "operations": found}


def check(what: str, found: object, expected: object) -> None:
    """Ends the program if an operation has another outcome than it must have."""
    if found != expected:
        raise SystemExit(f"{what}: {found}, not {expected}")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--collections", type=int, default=MADE)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--database-url")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Reads the arguments and measures."""
    asked = parsed(arguments)
    with tempfile.TemporaryDirectory(dir=asked.directory) as scratch:
        found = run(Path(scratch) / "store", asked.database_url, asked.collections)
    results.save(asked, found)


if __name__ == "__main__":
    main()
