"""The bottom-line case on a real S3 server that is busy, or slow.

    .venv/bin/python -m benchmarks.bottom_line_s3 [--scale 0.01] [--url s3://BUCKET/PREFIX]

Starts Ceph's gateway, unless a URL of another server is given, which the variables `AWS_…` name.
Fills a bucket as `benchmarks.bottom_line` fills a directory, and makes three runs of `ebbtide gc
run` through a proxy:

1. a run from cold: until a quarter of the candidates is deleted, a twentieth of all requests is
   answered with 503;
2. a run after a change of 1 %: each request takes half a second longer;
3. a run after 1 % more: the proxy changes nothing.

Each run must delete exactly the objects that nothing needs. Prints the bulk deletes a second while
requests were refused, in the first half of the deletes after that, and in the second half. Prints
also the rate of a loop with obstore, for the same objects, through a proxy that refuses nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import obstore
from obstore.store import S3Store

from benchmarks import results
from benchmarks.bottom_line import collect, show
from benchmarks.bottom_line_store import History, begun, change, put_back, write
from benchmarks.peers import PAGE
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.ceph import BUCKET, start_ceph
from tests.support.proxy import Proxy, proxied

BUSY: Final = 0.05
ENDPOINTS: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL")


@dataclass
class Deletes:
    """The times of bulk deletes, and the time at which the proxy stopped refusing requests."""

    proxy: Proxy
    refused_until: int  # the number of bulk deletes
    times: list[float] = field(default_factory=list)
    busy_ended: float | None = None

    def see(self, method: str, url: str) -> None:
        """Records a request. Ends the refusals after enough bulk deletes."""
        if method != "POST" or "delete" not in url:
            return
        self.times.append(time.monotonic())
        if len(self.times) >= self.refused_until and self.busy_ended is None:
            self.busy_ended = self.times[-1]
            self.proxy.busy_share = 0.0

    def rates(self) -> dict[str, float]:
        """Returns the bulk deletes a second while some were refused, then, and in the end."""
        ended = self.busy_ended
        after = [] if ended is None else [each for each in self.times if each > ended]
        if ended is None or len(after) < 4:
            return {}
        refused = len(self.times) - len(after)
        half = len(after) // 2
        return {
            "while refused": refused / max(0.1, ended - self.times[0]),
            "then": half / max(0.1, after[half - 1] - ended),
            "in the end": (len(after) - half) / max(0.1, after[-1] - after[half - 1]),
        }


def measured(
    name: str, history: History, lake: Repository, directory: Path, **options: float
) -> dict[str, Any]:
    """Makes a run through a proxy. Returns its figures."""
    target = os.environ[ENDPOINTS[0]]
    policy = history.policy(history.changes)
    lake.retention.set(Policy.parse(policy))
    with proxied(target, **options) as proxy:
        useless = history.useless(policy)
        seen = Deletes(proxy, max(2, round(len(useless) / 4_000)))
        proxy.seeing = seen.see
        kind = "cold" if history.changes == 0 else "warm"
        # Only the program gets this: the clients of this process are kept.
        more = dict.fromkeys(ENDPOINTS, proxy.endpoint)
        figures = collect(kind, history, useless, directory, more)
        figures.name = name
        found = {**figures.to_json(), "requests": dict(proxy.counts), "refused": proxy.refused}
    show(figures, None)
    rates = seen.rates()
    if rates:
        rates["obstore, in a loop"] = loop_rate(history, useless, lake, target)
        rates["in the end / obstore"] = rates["in the end"] / rates["obstore, in a loop"]
    print(f"  {found['requests']}, refused {found['refused']}, {rates}", flush=True)
    return found | {"bulk deletes a second": rates}


def loop_rate(history: History, numbers: set[int], lake: Repository, target: str) -> float:
    """Returns the bulk deletes a second of a loop over these objects."""
    put_back(history, numbers, lake)
    bucket, prefix = lake.context.storage.url.removeprefix("s3://").rstrip("/").split("/", 1)
    names = sorted(f"{prefix}/{history.address(number)}" for number in numbers)
    with proxied(target) as proxy:
        client = S3Store(bucket, endpoint=proxy.endpoint)
        started = time.monotonic()
        for first in range(0, len(names), PAGE):
            obstore.delete(client, names[first : first + PAGE])
        return len(names) / PAGE / (time.monotonic() - started)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--url", help="a place on a server that runs; else Ceph's gateway starts")
    parser.add_argument("--delay", type=float, default=0.5, help="seconds, of the second run")
    results.option(parser)
    return parser.parse_args(arguments)


@contextmanager
def place(url: str | None) -> Iterator[str]:
    """Yields the URL of an empty place on an S3 server. The environment names the server."""
    if url is not None:
        yield url
        return
    server = start_ceph()
    try:
        with patch.dict(os.environ, server.environment()):
            yield f"s3://{BUCKET}/bottom-line"
    finally:
        server.stop()


def main(arguments: list[str] | None = None) -> None:
    """Builds the store and measures."""
    options = parsed(arguments)
    runs: dict[str, dict[str, float]] = {
        "a twentieth refused": {"busy_share": BUSY},
        "half a second more": {"delay_seconds": options.delay},
        "as it is": {},
    }
    with (
        place(options.url) as url,
        tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary,
    ):
        directory = Path(temporary) / "store"
        history = begun(options.scale)
        started = time.monotonic()
        with Store.init(directory, settings=Settings(lease_ttl="0s", trash_time="0s")) as store:
            lake = store.create_repository("lake", storage_url=url)
            write(history, lake, store)
            print(f"made in {time.monotonic() - started:.0f} s", flush=True)
            content: dict[str, Any] = {"scale": options.scale}
            for name, faults in runs.items():
                if history.is_collected:
                    change(history, lake, store)
                content[name] = measured(name, history, lake, directory, **faults)
        results.save(options, content)


if __name__ == "__main__":
    main()
