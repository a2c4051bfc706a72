"""Random logs of Delta tables: plans, sweeps and guards against plain replay of the log."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest

from ebbtide.audit.verify import verify
from tests.formats.delta.logs import HOUR, KINDS, DeltaWriter, random_table
from tests.formats.delta.replay import DAY, Keeping, Replay
from tests.formats.delta.stand import NOW, DeltaLake, meanwhile, random_keeping
from tests.support.engines import ENGINES
from tests.support.fixtures import FIXTURES_VARIABLE
from tests.support.randomized import randomized
from tests.support.requirements import require_or_skip

UNBUILT = {"corrupt_tree", "missing_tree", "missing_node", "corrupt_node"}
MOMENTS = ("before the sweep", "before a batch", "in a batch", "after the last batch")
POLICIES = {
    "keep_within 30d, grace 7d": Keeping(within=30),
    "keep_within 7d, grace 7d": Keeping(within=7),
    "keep_within 2d, grace 2d": Keeping(within=2, grace=2),
    "keep_last 1, grace 1d": Keeping(last=1, grace=1),
    "keep_last 3, grace 7d": Keeping(last=3),
    "keep_last 1 and hold 2, grace 1d": Keeping(last=1, holds=(2,), grace=1),
}


def test_the_oracle_gives_the_known_answers(tmp_path: Path) -> None:
    """For real tables whose candidates another program computed, compared with Spark's VACUUM."""
    directory = Path(os.environ.get(FIXTURES_VARIABLE) or "/nowhere") / "delta"
    if not directory.is_dir():
        require_or_skip("fixtures", f"{FIXTURES_VARIABLE} names no directory with delta/")
    compared = 0
    for file in sorted((directory / "expected").glob("*.json")):
        facts = json.loads(file.read_text())
        if facts.get("refused") or facts.get("may_refuse"):
            continue
        for address, (_, modified) in facts["files"].items():
            target = tmp_path / file.stem / address
            target.parent.mkdir(parents=True, exist_ok=True)
            data = (directory / "tables" / file.stem / address).read_bytes()
            target.write_bytes(data.replace(b"/@ROOT@", os.fsencode(tmp_path)))
            os.utime(target, ns=(modified * 1_000_000,) * 2)
        replay = Replay(tmp_path / file.stem)
        assert {str(v): t for v, t in replay.times.items()} == {
            version: each["ms"] for version, each in facts["versions"].items()
        }
        for name, policy in facts["policies"].items():
            keeping = POLICIES[name]
            assert sorted(keeping.kept(replay.times, facts["now_ms"])) == policy["kept"]
            found = replay.candidates(keeping, facts["now_ms"])
            assert sorted(found) == policy["candidates"], (file.stem, name)
            compared += 1
    assert compared > 100


def check_kept(lake: DeltaLake, keeping: Keeping) -> None:
    """Every kept version replays, with all of its files there."""
    replay, files = Replay(lake.root), lake.files()
    for version in keeping.kept(replay.times, NOW):
        assert replay.files(version) <= files, version


@randomized("Delta logs")
def test_plans_are_those_of_plain_replay(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    keeping = random_keeping(rng)
    table = random_table(tmp_path / "lake", rng, now=NOW)
    table.litter(NOW, int(keeping.grace * DAY))
    lake, replay = DeltaLake(table.root, keeping), Replay(table.root)
    for version in replay.commits:  # the oracle knows what the writer meant
        state = replay.state(version)
        assert state is None or state["adds"].keys() == table.states[version].keys()
    if table.head not in replay.times:
        report = lake.collector().plan()
        assert report.error is not None
        assert report.error["kind"] in UNBUILT, report.error
        return
    wanted, before, log = replay.candidates(keeping, NOW), lake.files(), lake.log()
    assert lake.planned() == wanted
    if rng.random() < 0.3:
        report = lake.swept(quarantine=timedelta(days=7))
        assert not verify(lake.collector(), report.run_id).difference_count
        assert lake.files() == before - wanted
        assert lake.collector().undo(report.run_id).state == "undone"
        assert lake.files() == before
    lake.swept()
    assert lake.files() == before - wanted
    assert lake.log() == log
    check_kept(lake, keeping)
    # A checksum goes in the run after its file.
    wanted = Replay(table.root).candidates(keeping, NOW)
    assert all(each.endswith(".crc") for each in wanted)
    assert lake.planned() == wanted


@randomized("writers beside sweeps of Delta tables")
def test_a_writer_at_work_loses_nothing_or_is_told(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old files become needed again: an older version is restored, or an orphan is adopted."""
    rng = Random(seed)
    keeping, moment = Keeping(last=rng.randrange(1, 3), grace=1), rng.choice(MOMENTS)
    table = random_table(tmp_path / "lake", rng, now=NOW - 2 * DAY)
    lake, replay = DeltaLake(table.root, keeping), Replay(table.root)
    if table.head not in replay.times:
        return
    repository = lake.open()
    collector = lake.collector(repository, quarantine=timedelta(days=7))
    before, plan = lake.files(), collector.plan()
    assert plan.state == "planned", plan.error
    gone_then = set[str]()

    def work() -> None:
        gone_then.update(before - lake.files())
        orphans = sorted(each for each in table.adopted if each in before)
        table.now, table.adopted = NOW - rng.randrange(HOUR, 20 * HOUR), orphans
        for number in range(rng.randrange(1, 4)):
            older = rng.randrange(max(1, table.head - 3))
            operations = [lambda: table.restore(older), table.adopt, table.append]  # noqa: B023
            table.commit(rng.choice(operations[: 3 if number else 2])(), {})
            table.now = min(table.now + 60_000, NOW)
            if rng.random() < 0.3:
                table.checkpoint(rng.choice(KINDS))

    with monkeypatch.context() as patch:
        if moment == "before the sweep":
            work()
        else:
            meanwhile(patch, moment, work, batch=rng.randrange(3))
        report = collector.sweep(plan.run_id)
    head = table.head
    missing = Replay(table.root).files(head) - lake.files()
    told = str(report.error)
    if moment != "in a batch":  # what was there before the check is there after it
        assert missing <= gone_then, (moment, missing - gone_then)
    assert not missing or (report.error is not None and "undo" in told), (moment, told)
    if report.error is None:
        assert report.state == "swept"
    elif missing:
        assert collector.undo(plan.run_id).state == "undone"
        assert Replay(table.root).files(head) <= lake.files()
    # The next run goes on from what the table is now.
    lake.clock.advance(timedelta(minutes=5))
    if not Replay(table.root).files(head) - lake.files():
        lake.swept()
        check_head = Replay(table.root).files(head)
        assert check_head <= lake.files()


@pytest.mark.spark
@pytest.mark.drawn("engines on Spark")
@pytest.mark.parametrize("engine", ["spark", "joins"])
@randomized("Delta logs on Spark")
def test_spark_plans_the_same_files(engine: str, seed: int, tmp_path: Path) -> None:
    """And sweeps them, with the guard in its tasks."""
    rng = Random(seed)
    keeping = random_keeping(rng)
    table = random_table(tmp_path / "lake", rng, now=NOW)
    table.litter(NOW, int(keeping.grace * DAY))
    lake, replay = DeltaLake(table.root, keeping), Replay(table.root)
    lake.engine = ENGINES[engine]
    if table.head in replay.times:
        before, wanted = lake.files(), replay.candidates(keeping, NOW)
        assert lake.planned() == wanted
        lake.swept()
        assert lake.files() == before - wanted


@randomized("lakes of Delta tables")
def test_tables_in_one_run_protect_what_clones_need(seed: int, tmp_path: Path) -> None:
    """Tables beside and within each other, of which some have files of the others."""
    rng = Random(seed)
    keeping = random_keeping(rng)
    keeping = replace(keeping, holds=())  # a version has the name of its table there
    root, tables, uris = tmp_path / "lake", list[DeltaWriter](), list[str]()
    for place in ("a", "db/b c", rng.choice(("a/inner", "d")), "db/e"):
        made = random_table(root / place, rng, now=NOW, others=uris)
        made.litter(NOW, int(keeping.grace * DAY), nests=False)
        tables.append(made)
        files = sorted(f for state in made.states for add in state.values() for f in [add["path"]])
        files = [each for each in files if ":" not in each[:5] and each[0] != "/"]
        uris += [
            f"file://{quote(str(made.root))}/{e}" for e in rng.sample(files, min(3, len(files)))
        ]
    replays = [Replay(each.root) for each in tables]
    if any(t.head not in r.times for t, r in zip(tables, replays, strict=True)):
        return
    wanted, needed = set[Path](), set[Path]()
    for replay in replays:
        wanted |= {replay.root / each for each in replay.candidates(keeping, NOW)}
        kept = keeping.kept(replay.times, NOW)
        needed |= {each for version in kept for each in replay.elsewhere(version)}
    lake = DeltaLake(root, keeping, within="/**")
    found = {root / each for each in lake.planned()}
    assert found == wanted - needed, (found - wanted, found & needed, wanted - needed - found)
    before = lake.files()
    lake.swept()
    assert lake.files() == before - {each.relative_to(root).as_posix() for each in found}


def foreign(rng: Random, table: DeltaWriter, path: Path) -> bytes:
    """Content that is not of this file: cut off, of other files, or made to hurt a reader."""
    data = path.read_bytes()
    # A path that became another one is of no file, which shows in the newest version. A later
    # checkpoint would hide it there, and older versions may lack files. Nor does a run look for a
    # path that leads out of the table.
    flipped = bytearray(data)
    later = (each for each in table.log.glob("*.checkpoint*") if each.name[:20] >= path.name[:20])
    own = re.finditer(rb'"add": ?\{"path": ?"(?!/|\w+:)', data) if set(later) <= {path} else ()
    starts = [each.end() for each in own]
    for start in rng.sample(starts, min(1, len(starts))):
        flipped[start + 40 - start % 20] = rng.choice(b"abcxyz0189-")
    others = [each.read_bytes() for each in table.log.rglob("*.parquet")] + [b"PAR1PAR1"]
    lines = data.splitlines() if path.suffix == ".json" else []
    cut = data[: rng.randrange(len(data) + 1)]
    while cut and lines and cut[-1:] in b"}\n":  # whole lines less cannot be told from a commit
        cut = cut[:-1]
    return rng.choice(
        (
            cut,
            cut,
            bytes(flipped),
            b"",
            b"null\n",
            b"[]\n" + data,
            b'{"add":null}\n{"remove":7}\n',
            b'{"add":{"path":7}}\n' + data,
            b'{"add":{"size":1}}\n' + data,
            b'{"add":["path"]}\n' + data,
            b'{"remove":{"deletionVector":{"storageType":"u"}}}\n' + data,
            b'{"add":{"path":"a%zz.parquet"' + b"[" * 100_000,
            b"\x00" * 1000,
            b"\x1f\x8b\x08" + data,
            data.replace(b'"path"', b'"Path"'),
            rng.choice(others),
        )
    )


@randomized("damaged Delta logs")
def test_damage_never_makes_a_needed_file_a_candidate(seed: int, tmp_path: Path) -> None:
    """A file of the log is cut off, replaced or gone: a run refuses, or plans only files that no
    kept version needs."""
    rng = Random(seed)
    keeping = Keeping(within=10)
    table = random_table(tmp_path / "lake", rng, now=NOW)
    lake, replay = DeltaLake(table.root, keeping), Replay(table.root)
    if table.head not in replay.times:
        return
    needed = replay.live(keeping, NOW)
    paths = sorted(each for each in table.log.rglob("*") if each.name != "_last_checkpoint")
    for _ in range(10):
        content = b""
        path = rng.choice([each for each in paths if each.is_file() and each.suffix != ".crc"])
        before, date = path.read_bytes(), path.stat().st_mtime_ns
        # Without its newest commit, a log is that of an earlier time.
        is_gone = rng.random() < 0.3 and path.name != f"{table.head:020d}.json"
        if is_gone:
            path.unlink()
        else:
            path.write_bytes(content := foreign(rng, table, path))
            os.utime(path, ns=(date, date))
        report, still = lake.collector().plan(), needed
        if is_gone:
            # Versions that can no longer be built need nothing.
            left = Replay(table.root)
            still = left.live(keeping, NOW) if table.head in left.times else needed
        if report.error is None:
            found = lake.planned()
            assert not found & still, (path.name, is_gone, content[:300], found & still)
        else:
            assert report.error["kind"] != "internal", report.error
            if is_gone:
                assert table.head not in left.times or "checkpoint" in path.name, report.error
        path.write_bytes(before)
        os.utime(path, ns=(date, date))
