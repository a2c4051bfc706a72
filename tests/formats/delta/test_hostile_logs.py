"""Logs of Delta tables that are made to hurt a reader, and files that are spelled in other ways."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest

from ebbtide.formats.delta.actions import (
    actions_of,
    checkpoint_facts,
    read_checkpoint,
    read_commits,
    sidecars_of,
    surviving,
)
from ebbtide.formats.delta.places import DamagedLogError
from tests.formats.delta.logs import DeltaWriter
from tests.formats.delta.replay import DAY, Keeping, Replay
from tests.formats.delta.stand import NOW, DeltaLake
from tests.support.randomized import randomized


def at_least(lake: DeltaLake) -> set[str]:
    """The candidates of a plan, none if it refuses."""
    report = lake.collector().plan()
    assert report.error is None or report.error["kind"] != "internal", report.error
    return lake.planned() if report.error is None else set()


@pytest.mark.parametrize(
    "name",
    [
        f"{10**20 - 1}.json",
        f"{10**18:020d}.json",
        f"{10**18:020d}.checkpoint.parquet",
        f"{3:020d}.checkpoint.{1:010d}.{10**10 - 1}.parquet",
        f"{3:020d}.checkpoint.{0:010d}.{0:010d}.parquet",
        f"{0:020d}.{10**19}.compacted.json",
    ],
)
def test_numbers_in_names_are_no_amounts_of_work(name: str, tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "lake", Random(1), now=NOW - 50 * DAY)
    for _ in range(4):
        table.commit(table.rewrite(), {})
    lake = DeltaLake(table.root, Keeping(last=1, grace=1))
    wanted = Replay(table.root).candidates(Keeping(last=1, grace=1), NOW)
    table.put(f"_delta_log/{name}", table.now, b"")
    assert wanted
    assert at_least(lake) in (set(), wanted)


@pytest.mark.parametrize(
    "spelling", ["./{}", "x/../{}", "link/{}", "file://localhost{}", "FILE:{}"]
)
def test_other_spellings_of_a_needed_file_never_make_it_a_candidate(
    spelling: str, tmp_path: Path
) -> None:
    """With dots, by a symbolic link to the table, and with a host."""
    table = DeltaWriter(tmp_path / "lake", Random(2), now=NOW - 50 * DAY)
    table.column = ""
    (tmp_path / "link").symlink_to(table.root)
    for address in ("part-1.parquet", "part-2.parquet"):
        table.put(address)
    uri = spelling.format("part-1.parquet")
    if spelling.startswith("link"):
        uri = f"{tmp_path}/{uri}"
    elif ":" in spelling:
        uri = spelling.format(table.root / "part-1.parquet")
    table.commit([{"add": table.file(uri)}], {})
    for root in (table.root, tmp_path / "link"):
        lake = DeltaLake(table.root, Keeping(last=1, grace=1) if root == table.root else None)
        lake.root = root
        assert "part-1.parquet" not in at_least(lake)


@pytest.mark.parametrize("lacking", ["part", "sidecar", "commit", "checkpoint"])
def test_a_version_that_cannot_be_built_refuses_by_name(lacking: str, tmp_path: Path) -> None:
    """If an older version needs the file, that version is no commit, and a warning names it."""
    table = DeltaWriter(tmp_path / "lake", Random(3), now=NOW - 50 * DAY)
    for _ in range(3):
        table.commit(table.rewrite(), {})
    files = list[Path]()
    while len(files) < 2:
        for each in files:
            each.unlink()
        files = table.checkpoint("parts" if lacking == "part" else "uuid parquet")
    version = table.head
    table.commit(table.append(), {})
    for number in range(version + 1):
        (table.log / f"{number:020d}.json").unlink()
    lake = DeltaLake(table.root, Keeping(last=1, grace=1))
    assert lake.planned() == Replay(table.root).candidates(Keeping(last=1, grace=1), NOW)
    wanted = {"part": files[0].name, "sidecar": files[-1].name, "checkpoint": f"{version:020d}"}
    if lacking == "checkpoint":
        for each in files:
            each.unlink()
    elif lacking == "commit":
        table.commit(table.append(), {})
        (table.log / f"{version + 1:020d}.json").unlink()
    else:
        (files[0] if lacking == "part" else files[-1]).unlink()
    report = lake.collector().plan()
    assert report.error is not None
    name = wanted.get(lacking, f"{version + 1:020d}")
    assert name in report.error["message"] or str(version) in report.error["message"], name


@pytest.mark.timeout(60)
def test_a_sidecar_that_names_itself_ends(tmp_path: Path) -> None:
    """Sidecars have no sidecars: a run refuses, or reads each file once."""
    table = DeltaWriter(tmp_path / "lake", Random(5), now=NOW - 50 * DAY)
    table.commit(table.rewrite(), {})
    files = list[Path]()
    while len(files) < 2:
        for each in files:
            each.unlink()
        files = table.checkpoint("uuid parquet")
    car = {"path": files[-1].name, "sizeInBytes": 9, "modificationTime": 9}
    rows = table.rows(table.head)
    table.parquet(f"_delta_log/_sidecars/{files[-1].name}", [*rows, {"sidecar": car}])
    lake = DeltaLake(table.root, Keeping(last=1, grace=1))
    assert not at_least(lake) & Replay(table.root).files(table.head)


@pytest.mark.parametrize("first", ["null", " \r\n\tnull", "\ufeffnull", "null null", "[null]"])
def test_a_first_line_that_is_no_object_is_damage(first: str) -> None:
    """In a process of its own: pyarrow 26 ends the process if the first value is `null`."""
    data = f'{first}\n{{"add":{{"path":"x"}}}}\n'.encode()
    call = (
        "from tests.formats.delta.test_hostile_logs import told; "
        f"print(told({data!r}, 'x.json'), told({data!r}, ''))"
    )
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["damaged", "damaged"]


def told(data: bytes, name: str) -> str:
    """What a reader of a JSON checkpoint, or without a name of a commit, says of these bytes."""
    try:
        read_checkpoint(data, name) if name else read_commits([(0, data)])
    except DamagedLogError:
        return "damaged"
    return "read"


def read(data: bytes) -> tuple[list[dict[str, object]], list[str]]:
    """The adds and the sidecars of a checkpoint."""
    checkpoint_facts(data, "x.parquet")
    lines = read_checkpoint(data, "x.parquet")
    adds = surviving(actions_of(lines, np.zeros(lines.num_rows, np.int64)))
    return adds.to_pylist(), sidecars_of(lines)


@randomized("damaged Delta logs")
def test_damaged_bytes_of_checkpoints_are_told(seed: int, tmp_path: Path) -> None:
    """Bytes of a path, if the writer adds checksums of pages. Without them, and elsewhere, no
    damage makes another error than that of damage."""
    rng = Random(seed)
    table = DeltaWriter(tmp_path / "lake", rng, now=NOW - 50 * DAY)
    for _ in range(3):
        table.commit(table.rewrite(), {})
    (path,) = table.checkpoint("classic")
    rows = pq.read_table(path)
    pq.write_table(rows, path, write_page_checksum=True, compression="none", write_statistics=False)
    whole = path.read_bytes()
    assert read(whole)
    names = [each.start() for each in re.finditer(b"part-", whole)]
    for _ in range(20):
        data = bytearray(whole)
        data[rng.choice(names) + rng.randrange(30)] ^= 1 << rng.randrange(8)
        with pytest.raises(DamagedLogError):
            read(bytes(data))
    pq.write_table(rows, path, compression=rng.choice(("none", "snappy")))
    whole = path.read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        data[rng.randrange(len(whole))] = rng.randrange(256)
        with suppress(DamagedLogError):
            read(rng.choice((b"", b"", b"[]\n")) + data)


@pytest.mark.parametrize(
    ("action", "changed", "named"),
    [
        ("protocol", {"readerFeatures": ["catalogManaged"]}, "feature catalogManaged"),
        ("protocol", {"writerFeatures": ["fromTomorrow"]}, "feature fromTomorrow"),
        ("protocol", {"minReaderVersion": 4}, "minReaderVersion 4"),
        ("protocol", {"minWriterVersion": 8}, "minWriterVersion 8"),
        (
            "metaData",
            {"configuration": {"delta.coordinatedCommits.commitCoordinator-preview": "x"}},
            "delta.coordinatedCommits.commitCoordinator-preview",
        ),
        (
            "metaData",
            {"configuration": {"delta.redirectReaderWriter": "{}"}},
            "delta.redirectReaderWriter",
        ),
    ],
)
def test_unknown_features_are_refused(
    action: str, changed: dict[str, object], named: str, tmp_path: Path
) -> None:
    """Also if a later version does not need them any more."""
    table = DeltaWriter(tmp_path / "lake", Random(4), now=NOW - 50 * DAY)
    known = {"protocol": table.protocol, "metaData": table.metadata}[action]
    table.commit([{action: known[action] | changed}, *table.rewrite()], {})
    table.commit([known, *table.rewrite()], {})
    report = DeltaLake(table.root, Keeping(last=2, grace=1)).collector().plan()
    assert report.error is not None
    assert report.error["kind"] == "unknown_format_version"
    assert "version 1" in report.error["message"] and named in report.error["message"]
