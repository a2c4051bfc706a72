"""Many clients at once, of lakeFS and of S3, with a collector that never rests, and the reclaimer:
nothing that was acknowledged is lost, and at the end no file is left that nothing needs.

With `--log-cli-level=INFO` the test says what they did.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from ebbtide.settings import Settings
from ebbtide.store.content.layout import DATA_PREFIX, range_address
from ebbtide.store.embedded import Store
from ebbtide.store.refs.ref_rows import require_branch
from ebbtide.store.repository import Repository
from ebbtide.store.staging.staged_rows import page_of_staged
from tests.doors.s3.conftest import s3_client
from tests.doors.s3.users import S3User
from tests.support.collected import awaited
from tests.support.load import BRANCHES, KEEP_LAST, PREFIX, Library, Progress, User
from tests.support.randomized import randomized
from tests.support.server import Server, eventually, short_leases

logger = logging.getLogger(__name__)

CLIENTS: Final = (4, 6, 10)
"""How many there may be of lakeFS."""
S3_CLIENTS: Final = 2
ROWS_MAX: Final = 10_000
RUN: Final = {"unsafe": True, "allow_share": True}


MANY: Final = {
    "EBBTIDE_TRASH_TIME": "1s",
    "EBBTIDE_RECLAIM_INTERVAL": "1s",
    "EBBTIDE_SLICE_OBJECTS_MAX": "100",
    "EBBTIDE_RANGE_ENTRIES_TARGET": "8",
}
"""Slices and ranges are small, so that there are many."""


@dataclass
class Collecting:
    """A collector that starts a run as soon as the last has ended, by turns of either mode."""

    http: httpx.Client
    progress: Progress
    users: list[User]
    counts: Counter[str] = field(default_factory=Counter)
    ended: bool = False
    """Whether to stop after this run: the clients wait for runs as long as they work."""

    def work(self) -> None:
        """Until the clients have ended."""
        for mode in cycle(("incremental", "clean")):
            if self.ended:
                return
            self.run(mode, between=self._rescue)
            self.progress.run_ended()

    def run(
        self, mode: str, *, grace: str = "1s", between: Callable[[], None] | None = None
    ) -> None:
        """One run, to its end; something may be done between plan and sweep."""
        wanted: dict[str, Any] = RUN | {"mode": mode, "grace": grace}
        if between is not None:
            planned = self._run(wanted | {"dry_run": True})
            assert planned["state"] == "planned", planned
            between()
            wanted["sweep"] = planned["run_id"]
        swept = self._run(wanted)
        assert swept["state"] == "swept", swept
        self.counts["runs"] += 1
        self.counts["deleted"] += swept["report"]["deleted_count"]
        self.counts["came back"] += swept["report"]["revived_count"]

    def _run(self, wanted: dict[str, Any]) -> dict[str, Any]:
        started = self.http.post(f"{PREFIX}/gc/runs", json=wanted)
        assert started.status_code == 202, started.text
        return awaited(self.http, f"{PREFIX}/gc/runs/{started.json()['run_id']}")

    def _rescue(self) -> None:
        """Tag, for each client, the newest of its commits that the plan may hold expired."""
        kept = kept_by_policy(self.http)
        for user in self.users:
            for commit_id in reversed(list(user.commits)):
                if commit_id not in {*kept, *user.rescued}:
                    name = f"r{len(user.rescued)}-{user.number}"
                    made = self.http.post(f"{PREFIX}/tags", json={"id": name, "ref": commit_id})
                    assert made.status_code in (201, 410), made.text
                    if made.status_code == 201:
                        user.rescued.append(commit_id)
                    break


@pytest.mark.twins
@pytest.mark.drawn("databases under load")
@randomized("server under load")
def test_nothing_is_lost(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database_kind: str,
    seed: int,
    seconds: float,
) -> None:
    postgres = None if database_kind == "sqlite" else request.getfixturevalue("postgres")
    with short_leases(tmp_path / "store", postgres=postgres, **MANY) as server:
        _use(server, random.Random(seed), seconds)


def _use(server: Server, rng: random.Random, seconds: float) -> None:
    """Clients and a collector at work; then what is there is looked at."""
    server.repository("lake")
    count = rng.choice(CLIENTS)
    library, progress = Library(), Progress()
    with ExitStack() as stack:
        clients = [stack.enter_context(server.http()) for _ in range(count + 1)]
        _prepare(clients[0])
        users = [
            User(number, http, library, progress, random.Random(rng.getrandbits(32)))
            for number, http in enumerate(clients[1:])
        ]
        of_s3 = [
            S3User(
                number,
                stack.enter_context(closing(s3_client(server))),
                progress,
                random.Random(rng.getrandbits(32)),
            )
            for number in range(S3_CLIENTS)
        ]
        collecting = Collecting(clients[0], progress, users)
        _work_together([*users, *of_s3], collecting, seconds)
        for each in of_s3:
            each.finish()
        counts = sum((user.counts for user in users), Counter[str]())
        logger.info("%s operations: %s; %s", counts.total(), dict(counts), dict(collecting.counts))

        root = server.directory / "storage" / "lake"
        settings = Settings(database_url=server.environment.get("EBBTIDE_DATABASE_URL"))
        with Store.open(server.directory, settings=settings) as store:
            lake = store.repository("lake")

            def nothing_is_left_over() -> bool:
                collecting.run("clean", grace="0s")
                return _files(root) <= _needed(lake)

            # Leases of branches have to end.
            eventually(nothing_is_left_over)
            assert _files(root) == _needed(lake)
        kept = kept_by_policy(clients[0])
        for user in users:
            _check(user, kept)
        for each in of_s3:
            each.finish()
    assert "Traceback" not in server.log, server.log
    assert " ERROR " not in server.log, server.log


def _prepare(http: httpx.Client) -> None:
    for name in BRANCHES:
        if name != "main":
            made = http.post(f"{PREFIX}/branches", json={"name": name, "source": "main"})
            assert made.status_code == 201, made.text
    policy = {"policy": {"default": {"keep_last": KEEP_LAST}}}
    assert http.put(f"{PREFIX}/settings/retention", json=policy).status_code == 200


def _work_together(users: Sequence[User | S3User], collecting: Collecting, seconds: float) -> None:
    """All at once; the first error of anybody ends it."""
    progress = collecting.progress

    def watched(work: Future[None]) -> None:
        if work.exception() is not None:
            progress.fail()

    with ThreadPoolExecutor(len(users) + 1) as pool:
        collector = pool.submit(collecting.work)
        works = [pool.submit(user.work) for user in users]
        for work in (collector, *works):
            work.add_done_callback(watched)
        # So long that a file was needed again between plan and sweep, and was looked for again.
        progress.end_after(seconds, has_seen_enough=lambda: collecting.counts["came back"] > 0)
        wait(works)
        collecting.ended = True
        for work in (*works, collector):
            work.result()


def kept_by_policy(http: httpx.Client) -> set[str]:
    """The newest commits of each branch."""
    kept: set[str] = set()
    for name in BRANCHES:
        place = f"{PREFIX}/refs/{name}/commits"
        log = http.get(place, params={"first_parent": True, "amount": KEEP_LAST})
        kept |= {each["id"] for each in log.json()["results"]}
    return kept


def _check(user: User, kept: set[str]) -> None:
    """All that the client was told is done, read back; of what expired, that it is said so."""
    for branch, contents in user.shown.items():
        user.check_list(branch, user.prefix(branch), contents)
        for path, checksum in contents.items():
            user.check_bytes(branch, path, checksum)
    for commit_id, (branch, contents) in user.commits.items():
        if commit_id in {*kept, *user.tags.values(), *user.rescued}:
            user.check_list(commit_id, user.prefix(branch), contents)
            for path, checksum in contents.items():
                user.check_bytes(commit_id, path, checksum)
        elif contents:
            # By another's tag it may have been kept: what is read is right all the same.
            path, checksum = next(iter(contents.items()))
            place = f"/refs/{commit_id}/objects"
            answer = user.ask("GET", place, (200, "commit_expired"), params={"path": path})
            assert answer.status_code == 410 or answer.content == user.library[checksum]


def _files(root: Path) -> set[str]:
    """What is on the disk, but for records of runs and the owner."""
    found = {str(each.relative_to(root)) for each in root.rglob("*") if each.is_file()}
    system = {each for each in found if each.startswith("_ebbtide/gc/")} | {"_ebbtide/OWNER"}
    return found - system


def _needed(lake: Repository) -> set[str]:
    """What the commits that are intact, and what is staged, refer to. Of one that expired, and is
    still known, tree and ranges stay: merges compare with them."""
    context = lake.context
    tips = [*(each.name for each in lake.branches.list()), *(t.name for t in lake.tags.list())]
    logs = [lake.commits.log(tip, amount=ROWS_MAX) for tip in tips]
    commits = {each.commit_id: each for log in logs for each in log}
    needed: set[str] = set()
    for commit in commits.values():
        if commit.forgotten_by is None:
            tree = context.tree_of(commit)
            needed |= {tree.address, *(range_address(each.range_id) for each in tree.ranges)}
        if commit.is_intact:
            needed |= {entry.address for entry in lake.objects.walk(commit.commit_id)}
    with context.metadata.snapshot() as tx:
        for name in BRANCHES:
            for token in require_branch(tx, context.repository_id, name).tokens:
                rows = page_of_staged(tx, context.repository_id, token, amount=ROWS_MAX)
                needed |= {entry.address for _, entry in rows if entry is not None}
    assert any(address.startswith(DATA_PREFIX) for address in needed)
    return needed
