"""The bottom-line case on a Spark cluster of two workers, over a real S3 server.

    python -m benchmarks.cluster --url s3://BUCKET/PREFIX --served DIR [--scale 0.1]
        [--runs alone cluster dying]

An S3 server on this machine must serve the files of `DIR` as the objects of the URL. It is found by
the variables `AWS_…`. The store is built in files, and read and deleted through the server. Each
worker has one core and 3 GB. All runs are clean and begin without an address index:

1. without a cluster, on two cores;
2. on the cluster;
3. on the cluster, where a worker dies during the mark, and another during the deletes.

Each run must delete exactly the objects that nothing needs. They are written again after it. The
first run needs no S3 server: the URL may be that of the directory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import results
from benchmarks.bottom_line import collect, show
from benchmarks.bottom_line_store import begun, put_back, write
from ebbtide.gc.engines.spark.conf import write_archive
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from ebbtide.store.embedded import Store
from tests.support.cluster import Cluster, killer, running_cluster
from tests.support.proxy import proxied

WORKER_MEMORY: Final = "3g"
EXECUTOR_MEMORY: Final = "1g"
"""Of the JVM. The rest of a worker's memory is for Python, and beyond Spark's accounts."""
RUNS: Final = ("alone", "cluster", "dying")
INDEX: Final = "_ebbtide/gc/index"
MOMENTS: Final = (("GET", "_ebbtide/ranges/"), ("POST", "delete"))
"""The first requests of the mark, and of the deletes."""
ENDPOINTS: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL")


def of_cluster(cluster: Cluster, archive: Path) -> dict[str, str]:
    """Returns the variables of a program that works on the cluster."""
    return {
        "EBBTIDE_SPARK_MASTER": cluster.url,
        "EBBTIDE_SPARK_ARCHIVE": str(archive),
        "EBBTIDE_SPARK_CONF": f"spark.executor.memory={EXECUTOR_MEMORY}",
    }


def replace_worker(cluster: Cluster) -> None:
    """Kills a worker, and starts another one."""
    cluster.kill_worker()
    cluster.add_worker()


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--served", required=True, type=Path)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS)
    parser.add_argument("--master", default="local[2]", help="of the run without a cluster")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Builds the store and measures."""
    options = parsed(arguments)
    known = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary:
        directory, archive = Path(temporary) / "store", Path(temporary) / "environment.tar.gz"
        if set(options.runs) != {"alone"}:
            write_archive(archive)
        history = begun(options.scale)
        settings = Settings(lease_ttl="0s", trash_time="0s")
        with Store.init(directory, settings=settings) as store:
            lake = store.create_repository("lake", storage_url=options.url)
            files = open_storage(f"file://{options.served}")
            started = time.monotonic()
            write(history, lake, store, storage=files)
            print(f"made in {time.monotonic() - started:.0f} s", flush=True)
            policy = history.policy(history.changes)
            lake.retention.set(Policy.parse(policy))
            useless = history.useless(policy)
            content: dict[str, Any] = {"scale": options.scale}

            def measure(name: str, more: Mapping[str, str]) -> None:
                shutil.rmtree(options.served / INDEX, ignore_errors=True)
                figures = collect("cold", history, useless, directory, more)
                figures.name = name
                show(figures, None)
                content[name] = figures.to_json()
                put_back(history, useless, lake, storage=files)
                history.gone -= useless

            place = Path(temporary) / "cluster"
            if "alone" in options.runs:
                measure("two cores", {"EBBTIDE_SPARK_MASTER": options.master})
            if "cluster" in options.runs:
                with running_cluster(place, environment=known, memory=WORKER_MEMORY) as cluster:
                    measure("two workers", of_cluster(cluster, archive))
            if "dying" in options.runs:
                with proxied(known[ENDPOINTS[0]]) as proxy:
                    storage = dict.fromkeys(ENDPOINTS, proxy.endpoint)
                    known |= storage
                    with running_cluster(place, environment=known, memory=WORKER_MEMORY) as cluster:
                        waiting = list(MOMENTS)
                        proxy.seeing = killer(waiting, partial(replace_worker, cluster))
                        measure("workers die", {**of_cluster(cluster, archive), **storage})
                        if waiting:
                            raise SystemExit(f"no worker died at {waiting}")
    results.save(options, content)


if __name__ == "__main__":
    main()
