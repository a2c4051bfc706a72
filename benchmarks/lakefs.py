"""Measures the collection of a repository of a real lakeFS server, by Ebbtide and by a peer.

    python -m benchmarks.lakefs --server http://KEY:SECRET@HOST:PORT --namespace s3://BUCKET/PREFIX
        --directory DIR [--objects 100000 --commits 300] [--peer-mark COMMAND --peer-sweep COMMAND]

`DIR` is where the object storage keeps the files of the namespace, as they are: objects and
metadata are written there, which takes a while and is not part of the figure. Commits are made
through the server's API. A third of them is kept.

Mark and sweep are programs of their own, from their start to their end. A peer's commands may have
{repository} and {mark}: the newest run id below `_lakefs/retention/gc/unified/`. The plan must name
exactly the dead objects, and the sweep must delete exactly these. Then they are written again.
Credentials and settings of all programs come from the environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import shlex
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import lakefs_sdk
import pyarrow.parquet as pq
from lakefs_sdk.client import LakeFSClient

from benchmarks import measuring, results
from benchmarks.measuring import Measured, measure, mib
from ebbtide.arrow import texts
from ebbtide.storage import open_storage
from tests.formats.lakefs.tables import Pair, message, partition, range_row, value, written

SEED: Final = 20_261_127
RANGE_ENTRIES: Final = 2_500
PARTITION_OBJECTS: Final = 20_000
YEAR: Final = timedelta(days=360)
KEPT_DAYS: Final = 120
OLD: Final = timedelta(days=3)
"""The age of all files: no grace keeps them."""
UNIFIED: Final = "_lakefs/retention/gc/unified"


@dataclass(slots=True)
class Lake:
    """A repository that is written into the directory of its namespace."""

    client: LakeFSClient
    name: str
    namespace: str
    directory: Path
    dead: set[str] = field(default_factory=set)
    """The addresses that only expired commits have."""

    def write(self, address: str, data: bytes) -> None:
        """Writes an old file."""
        target = self.directory / address
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        seconds = (datetime.now(UTC) - OLD).timestamp()
        os.utime(target, (seconds, seconds))

    def build(self, objects: int, commits: int) -> None:
        """Half of the objects are in the first commit. Each later one overwrites some neighbours,
        in one range."""
        random = Random(SEED)
        first = objects // 2
        each = (objects - first) // commits
        now = datetime.now(UTC)
        ranges = [
            [self._put(number) for number in range(start, min(start + RANGE_ENTRIES, first))]
            for start in range(0, first, RANGE_ENTRIES)
        ]
        paths = [
            [f"table/{number:09d}".encode() for number in range(start, start + len(found))]
            for start, found in zip(range(0, first, RANGE_ENTRIES), ranges, strict=True)
        ]
        rows = [self._range(names, found) for names, found in zip(paths, ranges, strict=True)]
        head = self._main()
        number = first
        for commit in range(commits + 1):
            date = now - YEAR + YEAR * commit / (commits + 1)
            if commit:
                place = random.randrange(len(ranges))
                at = random.randrange(max(1, len(ranges[place]) - each))
                changed = ranges[place][at : at + each]
                if date <= now - timedelta(days=KEPT_DAYS):
                    # The commit before was no head any more at the cutoff.
                    self.dead.update(changed)
                fresh = [self._put(number + k) for k in range(len(changed))]
                number += len(changed)
                ranges[place][at : at + each] = fresh
                rows[place] = self._range(paths[place], ranges[place])
            head = self._commit(head, self._table(rows, b"metaranges").decode(), date)
        self.client.experimental_api.hard_reset_branch(self.name, "main", ref=head)

    def _put(self, number: int) -> str:
        name = partition(datetime.now(UTC) - OLD, number // PARTITION_OBJECTS)
        address = f"data/{name}/{number:019d}0"
        self.write(address, b"x")
        return address

    def objects(self) -> set[str]:
        """Returns the addresses of the objects whose files exist."""
        found = (self.directory / "data").glob("*/*")
        return {str(each.relative_to(self.directory)) for each in found}

    def again(self) -> None:
        """Writes the objects again that a program has deleted."""
        for address in self.dead:
            self.write(address, b"x")

    def _range(self, paths: Sequence[bytes], addresses: Sequence[str]) -> Pair:
        """Writes a range. Returns what a metarange has about it."""
        pairs = [(key, _entry(address)) for key, address in zip(paths, addresses, strict=True)]
        return range_row(self._table(pairs, b"ranges"), pairs)

    def _table(self, pairs: Sequence[Pair], kind: bytes) -> bytes:
        file_id, data = written(pairs, {b"type": kind})
        self.write(f"_lakefs/{file_id.decode()}", data)
        return file_id

    def _main(self) -> str:
        return str(self.client.branches_api.get_branch(self.name, "main").commit_id)

    def _commit(self, parent: str, metarange_id: str, date: datetime) -> str:
        """Makes a commit whose metadata is written already."""
        created = int(date.timestamp())
        commit_id = _commit_id(metarange_id, created, parent)
        self.client.internal_api.create_commit_record(
            self.name,
            lakefs_sdk.CommitRecordCreation(
                commit_id=commit_id,
                version=1,
                committer="benchmark",
                message="overwrite",
                metarange_id=metarange_id,
                creation_date=created,
                parents=[parent],
                metadata={},
                generation=1,
            ),
        )
        return commit_id


def _entry(address: str) -> bytes:
    identity = hashlib.sha256(address.encode()).digest()
    etag = hashlib.md5(address.encode()).hexdigest()
    return value(
        identity,
        message(
            (1, address.encode()),
            (2, message((1, 1))),
            (3, 1),
            (4, etag.encode()),
            (6, 1),
            (7, b"application/octet-stream"),
        ),
    )


def _commit_id(metarange_id: str, created: int, parent: str) -> str:
    """Returns the id that lakeFS gives to the commit: a checksum of its content."""
    parents = hashlib.sha256(b"\x03" + _number(1) + _text(parent)).digest()
    content = b"".join(
        [
            *map(_text, ("commit:v1", "benchmark", "overwrite", metarange_id)),
            _number(created),
            b"\x04" + _number(0),
            b"\x05\x00" + _number(len(parents)) + parents,
        ]
    )
    return hashlib.sha256(content).hexdigest()


def _text(text: str) -> bytes:
    return b"\x01" + _number(len(text)) + text.encode()


def _number(number: int) -> bytes:
    return b"\x02\x08" + struct.pack(">q", number)


def connect(server: str) -> LakeFSClient:
    """Returns a client of the server."""
    parts = urlsplit(server)
    return LakeFSClient(
        lakefs_sdk.Configuration(
            host=f"{parts.scheme}://{parts.hostname}:{parts.port}/api/v1",
            username=parts.username,
            password=parts.password,
        )
    )


def create(client: LakeFSClient, namespace: str, directory: Path) -> Lake:
    """Makes an empty repository of a new name."""
    name = f"b{secrets.token_hex(4)}"
    url = f"{namespace.rstrip('/')}/{name}"
    created = lakefs_sdk.RepositoryCreation(name=name, storage_namespace=url)
    client.repositories_api.create_repository(created)
    rules = lakefs_sdk.GarbageCollectionRules(default_retention_days=KEPT_DAYS, branches=[])
    client.repositories_api.set_gc_rules(name, rules)
    return Lake(client, name, url, directory / name)


def ours(lake: Lake, *arguments: str) -> Measured:
    """Runs `ebbtide gc` on the repository."""
    command = [measuring.PROGRAM, "gc", arguments[0], f"lakefs:{lake.name}", *arguments[1:]]
    return measure([*command, "--json"])


def candidates(report: dict[str, Any]) -> set[str]:
    """Returns what a plan of ours names."""
    storage = open_storage(report["run_path"])
    return {address for found in _parquet(storage, "candidates/") for address in found}


def marked(lake: Lake) -> tuple[str, set[str]]:
    """Returns the newest mark of the peer, and what it names."""
    storage = open_storage(lake.namespace)
    folders = list(storage.list_prefixes(f"{UNIFIED}/"))
    newest = max(
        folders, key=lambda folder: json.loads(storage.get(f"{folder}summary.json"))["start_time"]
    )
    found = {address for each in _parquet(storage, f"{newest}deleted/") for address in each}
    return newest.rstrip("/").rpartition("/")[2], found


def _parquet(storage: Any, prefix: str) -> Iterator[list[str]]:
    for batch in storage.list(prefix):
        for address in batch.column("address").to_pylist():
            if address.endswith(".parquet"):
                yield texts(pq.read_table(BytesIO(storage.get(address))).column("address"))


def check(found: set[str], dead: set[str]) -> None:
    """Ends the program if other objects were named or deleted than the dead ones."""
    if found != dead:
        raise SystemExit(f"{len(found - dead):,} too many, {len(dead - found):,} too few")


def show(step: str, mine: Measured, theirs: Measured | None) -> dict[str, Any]:
    """Prints both figures and their ratios."""
    found: dict[str, Any] = {"seconds": mine.seconds, "peak_mib": mib(mine.peaks.tree)}
    line = f"{step:<8}{mine.seconds:>8.1f} s{mib(mine.peaks.tree):>8.0f} MiB"
    if theirs is not None:
        found |= {"peer_seconds": theirs.seconds, "peer_peak_mib": mib(theirs.peaks.tree)}
        line += f"{theirs.seconds:>10.1f} s{mib(theirs.peaks.tree):>8.0f} MiB"
        line += f"   x {mine.seconds / theirs.seconds:.2f}, memory x "
        line += f"{mine.peaks.tree / theirs.peaks.tree:.2f}"
    print(line, flush=True)
    return found


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--directory", required=True, type=Path)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=300)
    parser.add_argument("--peer-mark")
    parser.add_argument("--peer-sweep")
    parser.add_argument("--quarantine", default="none", help="of our sweep; peers have none")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Builds a repository, and measures."""
    options = parsed(arguments)
    lake = create(connect(options.server), options.namespace, options.directory)
    started = time.monotonic()
    lake.build(options.objects, options.commits)
    print(f"{lake.name} built in {time.monotonic() - started:.0f} s, {len(lake.dead):,} dead")

    def peer(command: str | None, mark: str = "") -> Measured | None:
        if command is None:
            return None
        return measure(shlex.split(command.format(repository=lake.name, mark=mark)))

    theirs = peer(options.peer_mark)
    plan = ours(lake, "plan", "--allow-share")
    report = json.loads(plan.output)
    found = candidates(report)
    check(found, lake.dead)
    steps = {"mark": show("mark", plan, theirs)}
    mark = ""
    if theirs is not None:
        mark, named = marked(lake)
        extra, lacks = len(named - found), len(found - named)
        print(f"the peer names {len(named):,}: {extra:,} more, and {lacks:,} not")
    asked = ("--yes", "--allow-share", "--quarantine", options.quarantine)
    before = lake.objects()
    swept = ours(lake, "sweep", report["run_id"], *asked)
    check(before - lake.objects(), lake.dead)
    lake.again()
    steps["sweep"] = show("sweep", swept, peer(options.peer_sweep, mark))
    shape = {"objects": options.objects, "commits": options.commits, "dead": len(lake.dead)}
    results.save(options, {**shape, "steps": steps})


if __name__ == "__main__":
    main()
