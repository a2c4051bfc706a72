"""The policy that docs/permissions.md has for a collector, on a server that enforces policies: it
suffices, and a run without one of its actions says so.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.ids import new_id
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.gc.test_azure import DAY, KEPT, SETTINGS, USELESS, data_of, held_of
from tests.support.ceph import LIMITED, make_bucket
from tests.support.clock import ManualClock
from tests.support.engines import INLINE

PAGE: Final = Path(__file__).parents[2] / "docs" / "permissions.md"


class Bucket:
    """A new bucket, in which the second user of the server may do what its policy allows."""

    def __init__(self) -> None:
        self.name = f"lakes-{new_id()}"
        make_bucket(self.name, os.environ)
        self._owner = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT"])

    def allow(self, *, without: str | None = None) -> None:
        """Sets the policy of the page, without one of its actions. As a policy of a bucket it also
        names the user."""
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


def filled(store: Store, bucket: Bucket) -> tuple[Repository, set[str], set[str]]:
    """A repository, the files that it needs, and those that it does not."""
    lake = store.create_repository("lake", storage_url=f"s3://{bucket.name}/ebbtide/lake")
    lake.objects.put_many("main", (NewObject(f"kept/{n}", b"kept") for n in range(KEPT)))
    lake.commits.commit("main", "kept")
    used = data_of(lake)
    lake.objects.put_many("main", (NewObject(f"no/{n}", b"no") for n in range(USELESS)))
    lake.commits.reset("main")
    return lake, used, data_of(lake) - used


def collector_of(store: Store, lake: Repository, quarantine: timedelta | None) -> Collector:
    options: Any = {"grace": timedelta(0), "unsafe": True, "mode": "clean"}
    form = EmbeddedRepository(lake.context, store_id=store.store_id)
    return Collector(
        form, engine=INLINE, options=RunOptions.of(SETTINGS, quarantine=quarantine, **options)
    )


def test_the_policy_suffices(bucket: Bucket, tmp_path: Path) -> None:
    """For a plan, a run with a quarantine, its undo, a later run, and the end of its quarantine."""
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=SETTINGS, clock=clock) as store:
        lake, used, useless = filled(store, bucket)
        clock.now = datetime.now(UTC) + timedelta(seconds=5)  # later than the dates of all files
        collector = collector_of(store, lake, DAY)
        planned = collector.plan()
        assert planned.state == "planned", planned.error
        first = collector.sweep(planned.run_id)
        assert first.state == "swept", first.error
        assert data_of(lake) == used
        undone = collector.undo(first.run_id)
        assert undone.state == "undone", undone.error
        assert data_of(lake) == used | useless
        clock.advance(30 * DAY)  # the restored files are protected for a time
        second = collector.run()
        assert second.counts["quarantined"].objects == USELESS
        collector.purge(second.run_id)
        assert held_of(lake, second.run_id) == set()
        assert data_of(lake) == used


def test_without_the_right_to_delete_a_run_says_so(bucket: Bucket, tmp_path: Path) -> None:
    """Nothing is lost. With the right, the same run goes on."""
    clock = ManualClock(datetime.now(UTC))
    with Store.init(tmp_path / "store", settings=SETTINGS, clock=clock) as store:
        lake, used, useless = filled(store, bucket)
        clock.now = datetime.now(UTC) + timedelta(seconds=5)  # later than the dates of all files
        bucket.allow(without="s3:DeleteObject")
        collector = collector_of(store, lake, None)
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
