"""The policy that docs/permissions.md has for a collector, on a server that enforces policies: it
suffices, and a run without one of its actions says so.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import boto3
import pytest

from ebbtide.ids import new_id
from ebbtide.store.embedded import Store
from tests.gc.test_azure import USELESS, check_quarantine, data_of, filled
from tests.support.ceph import LIMITED, make_bucket
from tests.support.clock import ManualClock
from tests.support.world import AT_ONCE, collector_of

PAGE: Final = Path(__file__).parents[2] / "docs" / "permissions.md"


class Bucket:
    """A new bucket, in which the second user of the server may do what its policy allows."""

    def __init__(self) -> None:
        self.name = f"lakes-{new_id()}"
        self.url = f"s3://{self.name}/ebbtide/lake"
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
