"""The bottom-line case on a real S3 server that is busy, or slow.

    .venv/bin/python -m benchmarks.bottom_line_s3 [--scale 0.01]

Starts Ceph's gateway, fills a bucket as `benchmarks.bottom_line` fills a directory, and makes
three runs of `ebbtide gc run` through a proxy:

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

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
DELAY_SECONDS: Final = 0.5
PREFIX: Final = "bottom-line"
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
    name: str, history: History, lake: Repository, directory: Path, target: str, **options: float
) -> dict[str, Any]:
    """Makes a run through a proxy. Returns its figures."""
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
    names = sorted(f"{PREFIX}/{history.address(number)}" for number in numbers)
    with proxied(target) as proxy:
        client = S3Store(BUCKET, endpoint=proxy.endpoint)
        started = time.monotonic()
        for first in range(0, len(names), PAGE):
            obstore.delete(client, names[first : first + PAGE])
        return len(names) / PAGE / (time.monotonic() - started)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01)
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Builds the store and measures."""
    options = parsed(arguments)
    server = start_ceph()
    try:
        with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as temporary:
            os.environ.update(server.environment())
            directory = Path(temporary) / "store"
            settings = Settings(lease_ttl="0s", trash_time="0s")
            history = begun(options.scale)
            started = time.monotonic()
            with Store.init(directory, settings=settings) as store:
                url = f"s3://{BUCKET}/{PREFIX}"
                lake = store.create_repository("lake", storage_url=url)
                write(history, lake, store)
                print(f"made in {time.monotonic() - started:.0f} s", flush=True)
                content: dict[str, Any] = {"scale": options.scale}
                for name, faults in {
                    "a twentieth refused": {"busy_share": BUSY},
                    "half a second more": {"delay_seconds": DELAY_SECONDS},
                    "as it is": {},
                }.items():
                    if history.is_collected:
                        change(history, lake, store)
                    content[name] = measured(
                        name, history, lake, directory, server.endpoint, **faults
                    )
            results.save(options, content)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
