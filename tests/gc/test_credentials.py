"""Two repositories whose buckets belong to different users of a real S3 server behind two
endpoints: work on both in one process, and runs on a cluster that knows neither user's keys.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from ebbtide.arrow import texts
from ebbtide.errors import Failed
from ebbtide.ids import new_id
from ebbtide.storage import clients, open_storage, profiles
from ebbtide.store.embedded import Store
from ebbtide.store.staging.uploads import NewObject
from tests.gc.test_cluster import OPTIONS, environment
from tests.support.ceph import find_ceph, make_bucket, make_user
from tests.support.clock import wait_for_next_second
from tests.support.cluster import running_cluster
from tests.support.proxy import Proxy, proxied
from tests.support.requirements import require_or_skip
from tests.support.services import DIRECTORY_VARIABLE
from tests.support.world import AT_ONCE, collector_of

USERS: Final = ("first", "second")
USELESS: Final = 30
SECONDS_MAX: Final = 300
PROFILE: Final = """
[{name}]
prefixes = ["s3://{bucket}"]
endpoint = "{endpoint}"
region = "us-east-1"
allow_http = true
addressing = "path"
access_key_id = "{key_id}"
secret_access_key = "{secret}"
"""


@dataclass(frozen=True)
class Users:
    """Both users: their buckets, secrets and proxies, by name."""

    buckets: Mapping[str, str]
    secrets: Mapping[str, str]
    proxies: Mapping[str, Proxy]


@pytest.fixture
def users(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Users]:
    """Two users, and a file with a profile for each. The environment has no credentials."""
    if not find_ceph() or s3_url != "s3://ebbtide-tests":
        require_or_skip("s3", "only a server of the tests' own takes new users")
    (home,) = (Path(os.environ[DIRECTORY_VARIABLE]) / "ceph").glob("ebbtide-ceph-*")
    known = {name: os.environ[name] for name in ("AWS_ENDPOINT", "AWS_REGION")}
    buckets = {name: f"{name}-{new_id()[:12]}" for name in USERS}
    kept = {name: secrets.token_hex(20) for name in USERS}
    for name, bucket in buckets.items():
        make_user(home, bucket, bucket, kept[name])
        keys = {"AWS_ACCESS_KEY_ID": bucket, "AWS_SECRET_ACCESS_KEY": kept[name]}
        make_bucket(bucket, known | keys)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with proxied(known["AWS_ENDPOINT"]) as first, proxied(known["AWS_ENDPOINT"]) as second:
        proxies = dict(zip(USERS, (first, second), strict=True))
        text = [
            PROFILE.format(
                name=name,
                bucket=bucket,
                endpoint=proxies[name].endpoint,
                key_id=bucket,
                secret=kept[name],
            )
            for name, bucket in buckets.items()
        ]
        file = tmp_path / "credentials.toml"
        file.write_text("\n".join(text))
        monkeypatch.setenv(profiles.VARIABLE, str(file))
        clients.connect.cache_clear()
        yield Users(buckets, kept, proxies)
        clients.connect.cache_clear()


@pytest.fixture
def store(users: Users, tmp_path: Path) -> Iterator[Store]:
    """A store with a repository in each bucket, of objects that nothing needs, and one kept."""
    with Store.init(tmp_path / "store", settings=AT_ONCE) as store:
        for name, bucket in users.buckets.items():
            made = store.create_repository(name, storage_url=f"s3://{bucket}/lake")
            made.objects.put_many("main", (NewObject(f"{n}", b"old") for n in range(USELESS)))
            made.commits.reset("main")
            made.objects.put("main", "kept", name.encode())
            made.commits.commit("main", "kept")
        wait_for_next_second()
        yield store


def test_two_users_in_one_process(users: Users, store: Store) -> None:
    for name, bucket in users.buckets.items():
        lake = store.repository(name)
        assert lake.objects.get("main", "kept") == name.encode()
        assert lake.storage.url == f"s3://{bucket}/lake"
        report = collector_of(store, lake).run()
        assert (report.state, report.counts["deleted"].objects) == ("swept", USELESS)
        assert lake.objects.get("main", "kept") == name.encode()
    for name, proxy in users.proxies.items():
        (other,) = set(users.buckets) - {name}
        assert proxy.counts["PUT"] > USELESS
        # The other user's keys open nothing of this bucket.
        options_of_other = dict(profiles.options_of(f"s3://{users.buckets[other]}"))
        foreign = open_storage(f"s3://{users.buckets[name]}/lake", options_of_other)
        with pytest.raises(Failed) as caught:
            list(foreign.list())
        assert caught.value.kind == "storage_error"


@pytest.mark.spark
@pytest.mark.drawn("whole programs")
def test_executors_get_the_keys_and_nothing_shows_them(
    users: Users, store: Store, tmp_path: Path
) -> None:
    """The cluster's workers have no credentials in their environment, and not the file."""
    events = tmp_path / "events"
    events.mkdir()
    workers = tmp_path / "workers"
    known = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    shown: list[bytes] = []
    with running_cluster(workers, environment=known, workers=1) as cluster:
        for name in USERS:
            report, text = run_on(cluster.url, name, tmp_path / "store", events)
            assert report["state"] == "swept"
            assert report["deleted_kinds"]["object"]["objects"] == USELESS
            shown.append(text)
        logs = [*workers.glob("*.log"), *workers.glob("*/*/*/std*"), *events.rglob("*")]
        shown += [path.read_bytes() for path in logs if path.is_file()]
    # Logs of master, worker and two executors, and two event logs.
    assert sum(b"SparkListenerApplicationEnd" in each for each in shown) == 2
    for name in USERS:
        storage = store.repository(name).storage
        assert store.repository(name).objects.get("main", "kept") == name.encode()
        addresses = [a for batch in storage.list() for a in texts(batch["address"])]
        shown += [storage.get(address) for address in addresses]
    for secret in users.secrets.values():
        assert not any(secret.encode() in each for each in shown)
    database = (tmp_path / "store" / "metadata.db").read_bytes()
    assert not any(secret.encode() in database for secret in users.secrets.values())


def run_on(master: str, name: str, store: Path, events: Path) -> tuple[dict[str, Any], bytes]:
    """Collects a repository by the program, with a verbose log; its report, and all it printed."""
    command = [sys.executable, "-m", "ebbtide", "gc", "run", name, *OPTIONS, "--master", master]
    for setting in (
        "spark.eventLog.enabled=true",
        f"spark.eventLog.dir={events}",
        "spark.eventLog.compress=false",
        "spark.log.level=INFO",
    ):
        command += ["--conf", setting]
    done = subprocess.run(command, env=environment(store), capture_output=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"INFO" in done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report, done.stdout + done.stderr
