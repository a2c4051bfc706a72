"""Runs on a Spark cluster of separate processes, which know nothing of this environment, over a
real S3 server; and what happens when one of its workers dies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyspark
import pytest

import ebbtide.__main__
from ebbtide.gc.archive import archive_settings, write_archive
from ebbtide.ids import new_id
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from ebbtide.storage import clients
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.uploads import NewObject
from tests.support.cluster import Cluster, running_cluster
from tests.support.proxy import Proxy, proxied

SECONDS_MAX = 300
DELAY_SECONDS = 0.1
"""Of each request of the storage, once it is slow: long enough to notice what goes on."""


@pytest.fixture(scope="module")
def proxy(s3_url: str) -> Iterator[Proxy]:
    """A proxy before the storage, which driver and executors go through."""
    del s3_url
    with proxied(os.environ["AWS_ENDPOINT"]) as found, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL"):
            patch.setenv(name, found.endpoint)
        clients.connect.cache_clear()
        yield found
        clients.connect.cache_clear()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors need."""
    target = tmp_path_factory.mktemp("archive") / "environment.tar.gz"
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
def lake(proxy: Proxy, s3_url: str, tmp_path: Path) -> Iterator[Lake]:
    proxy.delay_seconds, proxy.seeing = 0.0, None
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
        time.sleep(1.1)  # a date in whole seconds may stand for any instant of that second
        yield Lake(store, made, kept, 100)


def environment(store: Path, **more: str) -> dict[str, str]:
    """Of a program that collects the store."""
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")},
        "EBBTIDE_STORE": str(store),
        "EBBTIDE_LEASE_TTL": "0s",
        "EBBTIDE_TRASH_TIME": "0s",
        "EBBTIDE_SHARE_MAX": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


RUN = ("gc", "run", "lake", "--yes", "--json", "--grace", "0s", "--unsafe", "--mode", "clean")


def collected(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    """The report of a run."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_run_on_a_cluster(lake: Lake, archive: Path, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        env = environment(
            tmp_path / "store",
            EBBTIDE_SPARK_MASTER=cluster.url,
            EBBTIDE_SPARK_ARCHIVE=str(archive),
        )
        lake.check(collected([sys.executable, "-m", "ebbtide", *RUN], env))


def test_run_by_spark_submit(lake: Lake, archive: Path, tmp_path: Path) -> None:
    submit = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
    options = [f"{name}={value}" for name, value in archive_settings(str(archive)).items()]
    with running_cluster(tmp_path / "cluster") as cluster:
        command = [
            str(submit),
            *("--master", cluster.url),
            *(word for option in options for word in ("--conf", option)),
            str(ebbtide.__main__.__file__),
            *RUN,
        ]
        env = environment(tmp_path / "store", PYSPARK_DRIVER_PYTHON=sys.executable)
        lake.check(collected(command, env))


@pytest.mark.parametrize(
    ("method", "part"), [("GET", "_ebbtide/ranges/"), ("POST", "delete")], ids=["mark", "sweep"]
)
def test_worker_that_dies(
    lake: Lake, proxy: Proxy, archive: Path, tmp_path: Path, method: str, part: str
) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        killed: list[int] = []
        proxy.seeing = killer(cluster, killed, method, part)
        proxy.delay_seconds = DELAY_SECONDS
        env = environment(
            tmp_path / "store",
            EBBTIDE_SPARK_MASTER=cluster.url,
            EBBTIDE_SPARK_ARCHIVE=str(archive),
        )
        report = collected([sys.executable, "-m", "ebbtide", *RUN], env)
        proxy.delay_seconds = 0.0
    # The worker, an executor, and what runs Python there.
    assert killed
    assert killed[0] >= 3
    lake.check(report)


def killer(cluster: Cluster, killed: list[int], method: str, part: str) -> Any:
    """Kills a worker at the first request of that kind."""
    lock = threading.Lock()

    def see(seen: str, url: str) -> None:
        with lock:
            if not killed and seen == method and part in url:
                killed.append(cluster.kill_worker(0))

    return see
