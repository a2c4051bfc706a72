"""Runs on a Spark cluster of separate processes, which know nothing of this environment, over a
real S3 server; and what happens when its workers die.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest

import ebbtide.__main__
from ebbtide.gc.engines.spark.conf import archive_settings, write_archive
from ebbtide.ids import new_id
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import wait_for_next_second
from tests.support.cluster import JAVA_OPTIONS, Cluster, killer, running_cluster
from tests.support.proxy import Proxy, proxied

pytestmark = [pytest.mark.spark, pytest.mark.drawn("whole programs")]

SECONDS_MAX = 300
QUICKLY = {"compresslevel": 0}
DELAY_SECONDS = 0.1
"""Of each request of the storage, once it is slow: long enough to notice what goes on."""


@pytest.fixture(scope="module")
def proxy(s3_url: str) -> Iterator[Proxy]:
    """A proxy before the storage, which driver and executors go through; the tests do not."""
    del s3_url
    with proxied(os.environ["AWS_ENDPOINT"]) as found:
        yield found


def of_storage(proxy: Proxy) -> dict[str, str]:
    """The variables by which the storage is found through the proxy."""
    known = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
    return known | {"AWS_ENDPOINT": proxy.endpoint, "AWS_ENDPOINT_URL": proxy.endpoint}


@pytest.fixture(scope="module")
def cluster(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with running_cluster(directory, environment=of_storage(proxy)) as found:
        yield found


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors need; not compressed as it is for others: that takes longer than all else."""
    target = tmp_path_factory.mktemp("archive") / "environment.tar.gz"
    pack = tarfile.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tarfile, "open", lambda *args, **more: pack(*args, **more | QUICKLY))
        write_archive(target)
    return target


@dataclass
class Lake:
    """A store with a repository of which `useless` objects may go, and `kept` ones stay."""

    store: Store
    repository: Repository
    kept: dict[str, bytes]
    useless: int

    def check(self, report: dict[str, Any]) -> None:
        """What was to go went, once each, and the rest reads back."""
        assert report["state"] == "swept"
        assert report["deleted_kinds"]["object"]["objects"] == self.useless
        assert (report["missing_count"], report["failed_count"]) == (0, 0)
        found = {path: self.repository.objects.get("main", path) for path in self.kept}
        assert found == self.kept
        left = [a for batch in self.repository.storage.list("data/") for a in batch.column(0)]
        assert len(left) == len(self.kept)


@pytest.fixture
def lake(s3_url: str, tmp_path: Path) -> Iterator[Lake]:
    settings = Settings(
        lease_ttl=timedelta(0), trash_time=timedelta(0), share_max=1.0, range_entries_target=8
    )
    with Store.init(tmp_path / "store", settings=settings) as store:
        made = store.create_repository("lake", storage_url=f"{s3_url}/{new_id()}")
        kept = {f"kept/{number:03d}": f"{number}".encode() for number in range(150)}
        made.objects.put_many("main", (NewObject(f"old/{n}", b"old") for n in range(100)))
        made.commits.commit("main", "old")
        made.objects.put_many("main", (NewObject(path, data) for path, data in kept.items()))
        for number in range(100):
            made.objects.delete("main", f"old/{number}")
        made.commits.commit("main", "new")
        made.retention.set(Policy.parse({"default": {"keep_last": 1}}))
        wait_for_next_second()
        yield Lake(store, made, kept, 100)


def environment(store: Path, **more: str) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")},
        "EBBTIDE_STORE": str(store),
        "EBBTIDE_LEASE_TTL": "0s",
        "EBBTIDE_TRASH_TIME": "0s",
        "EBBTIDE_SHARE_MAX": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        **more,
    }


OPTIONS = ["--yes", "--json", "--unsafe", "--quarantine=none", "--grace=0s", "--mode=clean"]
RUN = ["gc", "run", "lake", *OPTIONS]


def collected(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_run_by_spark_submit(
    lake: Lake, proxy: Proxy, cluster: Cluster, archive: Path, tmp_path: Path
) -> None:
    submit = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
    options = [f"{name}={value}" for name, value in archive_settings(str(archive)).items()]
    command = [
        str(submit),
        *("--master", cluster.url),
        *(word for option in options for word in ("--conf", option)),
        str(ebbtide.__main__.__file__),
        *RUN,
    ]
    store = tmp_path / "store"
    env = environment(store, PYSPARK_DRIVER_PYTHON=sys.executable, **of_storage(proxy))
    lake.check(collected(command, env))


def test_workers_that_die(
    lake: Lake, proxy: Proxy, cluster: Cluster, archive: Path, tmp_path: Path
) -> None:
    """One during the mark, another during the deletes; a new one comes for each."""
    killed: list[int] = []
    moments = [("GET", "_ebbtide/ranges/"), ("POST", "delete")]
    proxy.seeing = killer(moments, partial(replace_worker, cluster, killed))
    proxy.delay_seconds = DELAY_SECONDS
    try:
        env = environment(
            tmp_path / "store",
            EBBTIDE_SPARK_MASTER=cluster.url,
            EBBTIDE_SPARK_ARCHIVE=str(archive),
            **of_storage(proxy),
        )
        report = collected([sys.executable, "-m", "ebbtide", *RUN], env)
    finally:
        proxy.seeing, proxy.delay_seconds = None, 0.0
    assert not moments
    # Each time a worker, an executor, and what runs Python there.
    assert len(killed) == 2
    assert min(killed) >= 3
    lake.check(report)


@pytest.fixture(scope="module")
def idle_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("idle")
    with running_cluster(directory, environment={}, workers=0) as found:
        yield found


def test_nobody_works(lake: Lake, idle_cluster: Cluster, tmp_path: Path) -> None:
    """The run fails after the time that a setting names, and says what to check."""
    env = environment(
        tmp_path / "store",
        EBBTIDE_SPARK_MASTER=idle_cluster.url,
        EBBTIDE_SPARK_EXECUTORS_WAIT="2s",
    )
    command = [sys.executable, "-m", "ebbtide", *RUN]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS_MAX)
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "spark_error"
    assert f"{idle_cluster.url} has had no executor for 2s" in error["message"], done.stderr
    assert done.returncode == 1
    assert len(lake.kept) == len(list(lake.repository.objects.walk("main")))


def replace_worker(cluster: Cluster, killed: list[int]) -> None:
    killed.append(cluster.kill_worker())
    cluster.add_worker()
