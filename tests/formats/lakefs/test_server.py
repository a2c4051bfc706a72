"""Random histories on a real lakeFS server, by its own client: what goes is what the definition
says, and every object of every commit that stays reads back.

`EBBTIDE_TEST_LAKEFS` names a server, `http://KEY:SECRET@HOST:PORT`. `EBBTIDE_TEST_LAKEFS_PLACE` is
where it keeps its objects: a directory of this machine, or `s3://BUCKET/PREFIX`. Without both these
tests are skipped.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import lakefs_sdk
import pytest
from lakefs_sdk.client import LakeFSClient
from lakefs_sdk.exceptions import ApiException

from ebbtide.clock import SystemClock
from ebbtide.formats.lakefs.repository import GRACE, LakefsRepository, find_namespace
from ebbtide.formats.lakefs.server import Account, LakefsServer
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from tests.formats.lakefs.oracle import KnownCommit, active
from tests.support.engines import INLINE
from tests.support.icechunk_lake import candidates
from tests.support.randomized import randomized
from tests.support.requirements import require_or_skip

SERVER: Final = "EBBTIDE_TEST_LAKEFS"
PLACE: Final = "EBBTIDE_TEST_LAKEFS_PLACE"
AHEAD: Final = timedelta(days=30)
"""So much later runs are: a server's clock cannot be set, and fresh objects never go."""
DAYS: Final = 7
GONE: Final = 410


class LaterClock(SystemClock):
    """Some days ahead, of the storage too."""

    def host_now(self) -> datetime:
        return super().host_now() + AHEAD

    def storage_time(self, last_modified: datetime) -> datetime:
        return super().storage_time(last_modified) + AHEAD


class Lake:
    """A new repository, and all commits that were made in it."""

    def __init__(self) -> None:
        address, place = os.environ.get(SERVER), os.environ.get(PLACE)
        if not address or not place:
            require_or_skip("lakefs", f"{SERVER} and {PLACE} name no lakeFS server")
        parts = urlsplit(str(address))
        endpoint = f"{parts.scheme}://{parts.hostname}:{parts.port}"
        account = Account(endpoint, parts.username or "", parts.password or "")
        self.name = f"t{secrets.token_hex(6)}"
        self.place = str(place).rstrip("/")
        self.is_remote = self.place.startswith("s3://")
        url = f"{self.place}/{self.name}"
        self.storage = open_storage(url if self.is_remote else f"file://{url}")
        self.server = LakefsServer(account, self.name)
        self.client = LakeFSClient(
            lakefs_sdk.Configuration(
                host=f"{endpoint}/api/v1",
                username=account.access_key_id,
                password=account.secret_access_key,
            )
        )
        namespace = url if self.is_remote else f"local://{self.name}"
        created = lakefs_sdk.RepositoryCreation(name=self.name, storage_namespace=namespace)
        self.client.repositories_api.create_repository(created)
        rules = lakefs_sdk.GarbageCollectionRules(default_retention_days=DAYS, branches=[])
        self.client.repositories_api.set_gc_rules(self.name, rules)
        self.commits = {self.head("main")}

    def collector(self, **options: Any) -> Collector:
        settings = Settings(share_max=1.0)
        namespace = find_namespace(self.server, None if self.is_remote else self.place)
        repository = LakefsRepository(
            self.server,
            namespace,
            open_storage(namespace.storage_url),
            clock=LaterClock(),
        )
        chosen = RunOptions.of(settings, sessions=GRACE, patience=timedelta(0), **options)
        return Collector(repository, engine=INLINE, options=chosen)

    # What clients do

    def upload(self, branch: str, path: str, data: bytes) -> None:
        self.client.objects_api.upload_object(self.name, branch, path, content=data)

    def link(self, branch: str, path: str, data: bytes) -> None:
        """By an address of the server's, past the server."""
        found = self.client.staging_api.get_physical_address(self.name, branch, path)
        self.storage.put(found.physical_address.partition(f"/{self.name}/")[2], data)
        self.client.staging_api.link_physical_address(
            self.name,
            branch,
            path,
            lakefs_sdk.StagingMetadata(staging=found, checksum="e" * 32, size_bytes=len(data)),
        )

    def copy(self, branch: str, path: str, to: str) -> None:
        asked = lakefs_sdk.ObjectCopyCreation(src_path=path)
        self.client.objects_api.copy_object(self.name, branch, to, asked)

    def commit(self, branch: str, *, days_ago: int = 0) -> None:
        now = datetime.now(UTC) + AHEAD - timedelta(days=days_ago)
        earliest = self.client.commits_api.get_commit(self.name, branch).creation_date
        date = max(int(now.timestamp()) - 5, earliest)
        asked = lakefs_sdk.CommitCreation(message="m", date=date)
        self.commits.add(self.client.commits_api.commit(self.name, branch, asked).id)

    def head(self, branch: str) -> str:
        return self.server.branches()[branch]

    # What clients read

    def addresses(self, ref: str) -> set[str]:
        found = set()
        for _, url in self.server.view(ref):
            found.add(url.partition(f"/{self.name}/")[2])
        return found

    def objects(self) -> set[str]:
        return {
            str(address)
            for batch in self.storage.list("data/")
            for address in batch.column("address").to_pylist()
        }

    def known(self) -> dict[str, KnownCommit]:
        known = {}
        for commit_id in self.commits:
            found = self.server.commit(commit_id)
            created = datetime.fromtimestamp(found.created, UTC)
            known[commit_id] = KnownCommit(found.parents, created)
        return known

    def kept(self) -> set[str]:
        return active(
            self.known(),
            self.server.branches().values(),
            self.server.tags().values(),
            now=LaterClock().host_now(),
            days=timedelta(days=DAYS),
        )

    def read_all(self, ref: str) -> dict[str, bytes]:
        return {
            path: bytes(self.client.objects_api.get_object(self.name, ref, path))
            for path, _ in self.server.view(ref)
        }


@randomized("lakeFS histories on a server")
def test_random_histories(seed: int) -> None:
    random, lake = Random(seed), Lake()
    for _ in range(random.randrange(10, 50)):
        try:
            _step(lake, random)
        except ApiException as error:
            assert 400 <= error.status < 500, error  # nothing to commit, or a conflict
    kept = lake.kept()
    branches = [*lake.server.branches()]
    contents = {ref: lake.read_all(ref) for ref in (*kept, *branches)}
    stays = set().union(*(lake.addresses(ref) for ref in (*kept, *branches)))
    before = lake.objects()
    assert stays <= before

    report = lake.collector().plan()
    assert report.error is None, report.error
    planned = set(candidates(report))
    assert planned <= before - stays
    known = lake.known()
    pairs = [(each, known[parent]) for each in known.values() for parent in each.parents]
    if all(child.created >= parent.created for child, parent in pairs):
        # A commit that is dated before its parent keeps more here than by the definition.
        assert planned == before - stays
    _step_safely(lake, random)
    swept = lake.collector(quarantine=timedelta(days=1)).sweep(report.run_id)
    assert swept.state == "swept", swept.error
    for ref, content in contents.items():
        if ref in kept:
            assert lake.read_all(ref) == content
    for branch in lake.server.branches():
        lake.read_all(branch)


def _step_safely(lake: Lake, random: Random) -> None:
    branch = random.choice([*lake.server.branches()])
    lake.upload(branch, "late", b"late")
    lake.commit(branch)


def _step(lake: Lake, random: Random) -> None:
    client, name = lake.client, lake.name
    branches, commits = [*lake.server.branches()], sorted(lake.commits)
    branch, path = random.choice(branches), f"d/p{random.randrange(6)}"
    source = random.choice([branch, *commits])
    made = lakefs_sdk.BranchCreation(name=f"b{random.randrange(5)}", source=source)
    tag = lakefs_sdk.TagCreation(id=f"t{random.randrange(3)}", ref=branch)
    reverted = lakefs_sdk.RevertCreation(ref=random.choice(commits), parent_number=1)
    moves: list[Callable[[], object]] = [
        *[lambda: lake.upload(branch, path, b"x" * random.randrange(1, 4))] * 6,
        *[lambda: lake.link(branch, path, random.randbytes(4))] * 2,
        *[lambda: lake.copy(branch, path, f"d/p{random.randrange(6)}")] * 2,
        *[lambda: lake.commit(branch, days_ago=random.choice((0, 0, 5, 20)))] * 4,
        lambda: client.branches_api.create_branch(name, made),
        lambda: branch == "main" or client.branches_api.delete_branch(name, branch),
        lambda: client.tags_api.create_tag(name, tag),
        lambda: client.objects_api.delete_object(name, branch, path),
        lambda: client.refs_api.merge_into_branch(name, random.choice(branches), branch),
        lambda: client.branches_api.revert_branch(name, branch, reverted),
        lambda: client.experimental_api.hard_reset_branch(name, branch, random.choice(commits)),
        lambda: [client.tags_api.delete_tag(name, each) for each in lake.server.tags()],
    ]
    random.choice(moves)()
    lake.commits |= {*lake.server.branches().values()}


COMMITTED = {1: "main", 2: "main", 5: "dev", 6: "dev", 8: "dev2", 9: "dev2"}
"""Files, each in a commit of its own two weeks ago on this branch."""
REMOVED = {2: 12, 1: 8, 5: 8, 9: 8, 8: 6, 6: 4}
"""So many days ago another commit has removed them."""
STAGED = {3: "main", 4: "main", 7: "dev", 10: "dev2"}
STAY = {1, 3, 6, 8}


def test_what_the_server_s_own_system_test_expects() -> None:
    """As its job is tested: rules by branch, a deleted branch, changes thrown away, a staged file
    removed. Source: lakeFS, `esti/unified_gc_test.go`."""
    lake = Lake()
    client, name = lake.client, lake.name
    for branch in ("dev", "dev2"):
        made = lakefs_sdk.BranchCreation(name=branch, source="main")
        client.branches_api.create_branch(name, made)
    rules = [
        lakefs_sdk.GarbageCollectionRule(branch_id=branch, retention_days=days)
        for branch, days in {"main": 10, "dev": 7}.items()
    ]
    asked = lakefs_sdk.GarbageCollectionRules(default_retention_days=7, branches=rules)
    client.repositories_api.set_gc_rules(name, asked)
    addresses = {}

    def upload(number: int, branch: str) -> None:
        lake.upload(branch, f"file_{number}", b"%d" % number)
        url = lake.server.address_at(branch, f"file_{number}")
        addresses[number] = url.partition(f"/{name}/")[2]

    for number, branch in COMMITTED.items():
        upload(number, branch)
        lake.commit(branch, days_ago=14)
    old = lake.head("main")
    for number, days in REMOVED.items():
        branch = COMMITTED[number]
        client.objects_api.delete_object(name, branch, f"file_{number}")
        lake.commit(branch, days_ago=days)
    for number, branch in STAGED.items():
        upload(number, branch)
    client.objects_api.delete_object(name, "main", "file_4")
    client.branches_api.delete_branch(name, "dev2")
    client.branches_api.reset_branch(name, "dev", lakefs_sdk.ResetCreation(type="reset"))

    assert lake.collector().run().state == "swept"

    assert {number for number, each in addresses.items() if each in lake.objects()} == STAY
    with pytest.raises(ApiException) as caught:  # it goes on saying that the object is there
        client.objects_api.get_object(name, old, "file_2")
    assert caught.value.status == GONE
    assert lake.server.address_at(old, "file_2")
