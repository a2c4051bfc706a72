"""The collector on real servers of Azure's interface and of S3, one of which is busy; and the
rights that docs/storages.md grants.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import boto3
import pytest

from ebbtide.arrow import texts
from ebbtide.ids import new_id
from ebbtide.storage import clients, open_storage
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.ceph import LIMITED, make_bucket
from tests.support.clock import ManualClock
from tests.support.proxy import Proxy, proxied
from tests.support.world import AT_ONCE, DAY, collector_of

USELESS: Final = 60
KEPT: Final = 5


def data_of(lake: Repository) -> set[str]:
    return {name for batch in lake.storage.list("data/") for name in texts(batch["address"])}


def held_of(lake: Repository, run_id: str) -> set[str]:
    prefix = f"_ebbtide/gc/runs/{run_id}/quarantine/"
    found = (name for batch in lake.storage.list(prefix) for name in texts(batch["address"]))
    return {name.removeprefix(prefix) for name in found}


def filled(store: Store, url: str) -> tuple[Repository, set[str], set[str]]:
    """A repository, the files that it needs, and those that it does not."""
    lake = store.create_repository("lake", storage_url=url)
    lake.objects.put_many("main", (NewObject(f"kept/{n}", b"kept") for n in range(KEPT)))
    lake.commits.commit("main", "kept")
    used = data_of(lake)
    lake.objects.put_many("main", (NewObject(f"no/{n}", b"no") for n in range(USELESS)))
    lake.commits.reset("main")
    useless = data_of(lake) - used
    assert (len(used), len(useless)) == (KEPT, USELESS)
    return lake, used, useless


def check_quarantine(store: Store, clock: ManualClock, url: str) -> None:
    """A run with a quarantine, its undo, a later run, and the end of its quarantine."""
    lake, used, useless = filled(store, url)
    clock.now = datetime.now(UTC) + timedelta(seconds=5)  # later than the dates of all files
    collector = collector_of(store, lake, quarantine=DAY)
    first = collector.run()
    assert first.state == "swept", first.error
    assert first.counts["quarantined"].objects == USELESS
    assert (data_of(lake), held_of(lake, first.run_id)) == (used, useless)

    undone = collector.undo(first.run_id)
    assert undone.state == "undone", undone.error
    assert (data_of(lake), held_of(lake, first.run_id)) == (used | useless, set())

    clock.advance(30 * DAY)  # the restored files are protected for a time
    second = collector.run()
    assert second.counts["quarantined"].objects == USELESS
    collector.purge(second.run_id)
    assert (data_of(lake), held_of(lake, second.run_id)) == (used, set())
    assert {lake.objects.get("main", f"kept/{n}") for n in range(KEPT)} == {b"kept"}


def test_a_run_with_quarantine_undo_and_purge(azure_url: str, tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=AT_ONCE, clock=clock) as store:
        check_quarantine(store, clock, f"{azure_url}/{new_id()}")


PAGE: Final = Path(__file__).parents[2] / "docs" / "storages.md"


class Bucket:
    """A new bucket, in which the second user of the server may do what its policy allows."""

    def __init__(self) -> None:
        self.name = f"lakes-{new_id()}"
        self.url = f"s3://{self.name}/ebbtide/lake"
        make_bucket(self.name, os.environ)
        self._owner = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT"])

    def allow(self, *, without: str | None = None) -> None:
        """Sets the page's policy without one of its actions. For a bucket it names the user too."""
        (text,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
        policy = json.loads(text.replace(":::lakes", f":::{self.name}"))
        for statement in policy["Statement"]:
            statement["Principal"] = {"AWS": [f"arn:aws:iam:::user/{LIMITED[0]}"]}
            actions = statement["Action"]
            if isinstance(actions, list):
                statement["Action"] = [each for each in actions if each != without]
                # Ceph's gateway looks up the right to delete several objects at the bucket itself.
                statement["Resource"] = [statement["Resource"], f"arn:aws:s3:::{self.name}"]
        self._owner.put_bucket_policy(Bucket=self.name, Policy=json.dumps(policy))


@pytest.fixture
def bucket(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket; from then on the environment has the keys of the second user."""
    if "EBBTIDE_TEST_S3_URL" in os.environ:
        pytest.skip(f"{s3_url} is of a server without a second user")
    made = Bucket()
    made.allow()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", LIMITED[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", LIMITED[1])
    return made


def test_the_policy_suffices(bucket: Bucket, tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=AT_ONCE, clock=clock) as store:
        check_quarantine(store, clock, bucket.url)


def test_without_the_right_to_delete_a_run_says_so(bucket: Bucket, tmp_path: Path) -> None:
    """Nothing is lost. With the right, the same run goes on."""
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=AT_ONCE, clock=clock) as store:
        lake, used, useless = filled(store, bucket.url)
        clock.now = datetime.now(UTC) + timedelta(seconds=5)  # later than the dates of all files
        bucket.allow(without="s3:DeleteObject")
        collector = collector_of(store, lake)
        report = collector.run()
        assert report.state == "incomplete"
        assert report.counts["failed"].objects == USELESS
        assert report.counts["deleted"].objects == 0
        assert data_of(lake) == used | useless
        said = " ".join([*report.warnings, *(report.error or {}).values()])
        assert "s3:DeleteObject" in said or "AccessDenied" in said, report
        bucket.allow()
        again = collector.sweep(report.run_id)
        assert again.state == "swept", again.error
        assert data_of(lake) == used


@pytest.fixture
def proxy(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the server, which all that is opened from now on goes through."""
    del s3_url
    with proxied(os.environ["AWS_ENDPOINT"]) as found:
        for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL"):
            monkeypatch.setenv(name, found.endpoint)
        # Clients are kept, and know the endpoint that there was.
        clients.connect.cache_clear()
        yield found
        clients.connect.cache_clear()


def test_most_deletes_are_refused(s3_url: str, proxy: Proxy) -> None:
    proxy.busy_share = 0.6
    storage = open_storage(f"{s3_url}/{new_id()}")
    addresses = [f"data/{new_id()}/{new_id()}" for _ in range(3_000)]
    outcomes = storage.delete(addresses)
    assert {each.outcome for each in outcomes} == {"deleted"}
    assert proxy.refused > 0
