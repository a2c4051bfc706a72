"""Measures the time to the first content of each page, in Chromium.

    .venv/bin/python -m benchmarks.pages [--directory DIR] [--commits 30000] [--candidates 1000000]

The server runs on loopback, over a repository with many commits on some branches, and a plan that
names many files. Both are written directly to the database and the run's folder, and the files do
not exist. For each page three figures are shown, each the median of all visits. They are the
browser's first contentful paint, the same answer fetched by a plain HTTP client right after it, and
the server's processor time for that answer. The aim is a second.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from playwright.sync_api import sync_playwright

from benchmarks.results import option, save
from benchmarks.server import PROGRAM, Running, served
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.candidates import CANDIDATE_SCHEMA
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Count, PartRows
from ebbtide.gc.plan import write_plan
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import descending_id, new_id
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import KeyPair, Role
from ebbtide.store.database.commit_rows import insert_commit
from ebbtide.store.database.schema import branches
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository

NAME: Final = "lake"
BRANCHES: Final = 20
PART_ROWS: Final = 50_000
OBJECT_BYTES: Final = 100_000
SECONDS_MAX: Final = 1.0
SEED: Final = 20_261_122
POLICY: Final = {"default": "30d", "branches": {"main": {"keep_within": "60d", "keep_monthly": 12}}}
Figures = tuple[float, float, float]
"""In seconds: the first paint, the plain answer, the server's processor time."""
PAINT: Final = (
    "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime / 1000)[0]"
)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", help="where the store is made; a temporary one without it")
    parser.add_argument("--commits", type=int, default=30_000)
    parser.add_argument("--candidates", type=int, default=1_000_000)
    parser.add_argument("--visits", type=int, default=3, help="of each page")
    option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Builds the store, serves it, and visits each page."""
    asked = parsed(arguments)
    with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
        settings = Settings(reclaim=False)
        with Store.init(Path(directory) / "store", settings=settings) as store:
            lake = store.create_repository(NAME)
            _fill(lake, asked.commits)
            run_id = _plan(store, lake, asked.candidates)
            key = store.keys.create(Role.ADMIN)
        environment = {"EBBTIDE_STORE": f"{directory}/store", "EBBTIDE_RECLAIM": "false"}
        with served([*PROGRAM, "serve", "--port", "0"], **environment) as server:
            found = _visit(server, key, run_id, asked)
    load = os.getloadavg()[0]
    print(f"{'page':<24}{'paint':>8}{'plain':>8}{'ratio':>7}{'server':>8}   load {load:.1f}")
    for page, (paint, plain, cpu) in found.items():
        late = "  above the aim" if paint > SECONDS_MAX else ""
        print(f"{page:<24}{paint:>7.2f}s{plain:>7.2f}s{paint / plain:>7.1f}{cpu:>7.2f}s{late}")
    names = ("paint_s", "plain_s", "server_cpu_s")
    pages = {name: dict(zip(names, figures, strict=True)) for name, figures in found.items()}
    save(asked, {"commits": asked.commits, "candidates": asked.candidates, "pages": pages})


def _fill(lake: Repository, count: int) -> None:
    """Makes commits over two years, each on the head of a branch, some of them merges."""
    rng = random.Random(SEED)
    names = ["main", *(f"branch-{number:02d}" for number in range(1, BRANCHES))]
    for name in names[1:]:
        lake.branches.create(name, "main")
    first = lake.commits.get("main")
    heads = dict.fromkeys(names, first.commit_id)
    start = datetime.now(UTC) - timedelta(days=730)
    with lake.context.metadata.transaction() as tx:
        for number in range(count):
            name, other = rng.choices(names, k=2)
            parents = [heads[name]]
            if rng.random() < 0.1 and heads[other] != heads[name]:
                parents.append(heads[other])
            made_at = start + timedelta(days=730) * number / count
            commit = replace(
                first,
                commit_id=new_id(),
                parent_ids=tuple(parents),
                created_at=made_at,
                written_at=made_at,
                message=f"Commit {number}",
                committer="etl",
            )
            insert_commit(tx, lake.info.repository_id, commit)
            heads[name] = commit.commit_id
        for name, head in heads.items():
            tx.execute(sa.update(branches).where(branches.c.name == name).values(commit_id=head))
    lake.retention.set(POLICY)


def _plan(store: Store, lake: Repository, count: int) -> str:
    """Writes a plan that names `count` files, as a run would have written it. Returns the run's
    id."""
    form = EmbeddedRepository(lake.context, store_id=store.store_id)
    engine = DuckEngine()
    collector = Collector(form, engine=engine, options=RunOptions.of(store.settings))
    plan = collector.plan_of(collector.plan().run_id)
    run_id = descending_id(datetime.now(UTC))
    folder, answer = RunFolder.inside(lake.storage, run_id), PartRows()
    for number, table in enumerate(_candidates(count)):
        answer.wrote(folder, f"candidates/{number:05d}.parquet", table, kind="object")
    # These are the files of the plan that was just made: the decision is the same.
    for name in ("commits.parquet", "refs.parquet"):
        source = RunFolder.inside(lake.storage, plan.run_id)
        lake.storage.put(folder.address(name), lake.storage.get(source.address(name)))
    total = Count(count, count * OBJECT_BYTES)
    large = replace(
        plan,
        run_id=run_id,
        candidates=tuple(sorted(answer.parts(), key=lambda part: part.name)),
        counts={**plan.counts, "listed": total, "candidate": total},
        whole=total,
    )
    checksum = write_plan(folder, large)
    form.record_run(run_id, state="planned", run_path=folder.path, plan_checksum=checksum)
    return run_id


def _candidates(count: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng(SEED)
    now = datetime.now(UTC)
    for start in range(0, count, PART_ROWS):
        rows = min(PART_ROWS, count - start)
        slice_id = descending_id(now - timedelta(hours=start // PART_ROWS))
        columns: dict[str, Any] = {
            "address": [f"data/{slice_id}/{start + row:032x}" for row in range(rows)],
            "size_bytes": rng.integers(1, 2 * OBJECT_BYTES, rows),
            "last_modified": [now - timedelta(days=float(d)) for d in rng.uniform(1, 700, rows)],
            "kind": ["object"] * rows,
        }
        yield pa.table(
            [columns.get(field.name, pa.nulls(rows, field.type)) for field in CANDIDATE_SCHEMA],
            schema=CANDIDATE_SCHEMA,
        )


def _places(run_id: str, asked: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Returns each page by its name: its path, and a text that it must show."""
    lake = f"/ui/repositories/{NAME}"
    run = f"{lake}/runs/{run_id}"
    day = datetime.now(UTC).date() - timedelta(days=400)
    last = asked.candidates * 9 // 10
    count = f"{asked.candidates:,}"
    return {
        "repositories": ("/ui", NAME),
        "overview": (lake, run_id),
        "commits": (f"{lake}/commits", f"Commit {asked.commits - 1}"),
        "commits, a day": (f"{lake}/commits?date={day}", "Commit "),
        "policy": (f"{lake}/policy", "keep_monthly"),
        "run": (run, count),
        "candidates": (f"{run}/candidates", count),
        "candidates, the last": (f"{run}/candidates?position={last}", count),
        "candidates, a search": (f"{run}/candidates?search=00dbba", "00dbba"),
    }


def check(name: str, answer: httpx.Response, text: str) -> None:
    """Ends the program unless a page shows the text."""
    if answer.status_code != 200 or text not in answer.text:
        raise SystemExit(f"the page {name} ({answer.status_code}) does not show {text!r}")


def _visit(
    server: Running, key: KeyPair, run_id: str, asked: argparse.Namespace
) -> dict[str, Figures]:
    url = server.url
    login = {"access_key_id": key.key.access_key_id, "secret": key.secret}
    found: dict[str, Figures] = {}
    program = os.environ.get("EBBTIDE_TEST_CHROMIUM") or shutil.which("chromium")
    with (
        httpx.Client(base_url=url, timeout=120) as client,
        sync_playwright() as started,
    ):
        client.post("/ui/login", data=login, headers={"Origin": url})
        # Chromium's own sandbox needs rights that root and containers do not have.
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{url}/ui/login")
        page.fill("#access_key_id", login["access_key_id"])
        page.fill("#secret", login["secret"])
        page.click("button.primary")
        page.wait_for_url(re.compile("/ui$"))
        for name, (place, text) in _places(run_id, asked).items():
            paints, plain, cpu = [], [], []
            for _ in range(asked.visits):
                page.goto(f"{url}{place}", wait_until="load")
                # Polled here: the policy of the pages forbids to evaluate text in the page, which
                # `wait_for_function` does.
                while (painted := page.evaluate(PAINT)) is None:
                    page.wait_for_timeout(10)
                paints.append(float(painted))
                page.wait_for_load_state("networkidle")
                begun, busy = time.perf_counter(), sum(server.process.cpu_times()[:2])
                answer = client.get(place)
                plain.append(time.perf_counter() - begun)
                cpu.append(sum(server.process.cpu_times()[:2]) - busy)
                check(name, answer, text)
            medians = map(statistics.median, (paints, plain, cpu))
            found[name] = (next(medians), next(medians), next(medians))
        browser.close()
    return found


if __name__ == "__main__":
    main()
