"""Incremental runs of Delta tables, which list nothing, against plain replay of the log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.arrow import texts
from ebbtide.errors import Refused
from ebbtide.formats.capabilities import Releasing, plan_listing
from ebbtide.formats.delta.layout import tree_id
from ebbtide.formats.delta.reading import changes_since
from ebbtide.gc.report import RunReport
from ebbtide.storage import Storage
from tests.formats.delta.logs import HOUR, KINDS, DeltaWriter, random_table
from tests.formats.delta.replay import DAY, Action, Keeping, Replay
from tests.formats.delta.stand import NOW, DeltaLake, at, random_keeping
from tests.support.icechunk_lake import candidates
from tests.support.randomized import randomized


def some_of(rng: Random, numbers: list[int]) -> set[int]:
    """A kept set: the newest version, and others."""
    share = rng.choice((0.0, 0.2, 0.6, 0.9))
    return {numbers[-1], *(each for each in numbers if rng.random() < share)}


@randomized("what Delta commits release")
def test_the_log_names_what_its_commits_release(seed: int, tmp_path: Path) -> None:
    """Any two kept sets of one log, of which the first was kept when the log was shorter."""
    rng = Random(seed)
    table = random_table(tmp_path / "lake", rng, now=NOW)
    replay = Replay(table.root)
    numbers = sorted(replay.times)
    if table.head not in replay.times:
        return
    repository = DeltaLake(table.root).open()
    with repository.reading(at(NOW)):
        pass
    states = repository._tables.values()
    before = numbers[: rng.randrange(1, len(numbers) + 1)]
    kept, now = some_of(rng, before), some_of(rng, numbers)
    gone = (kept | {each for each in numbers if each > before[-1]}) - now
    # Versions of the earlier run that the log has lost since.
    lost = {each for each in range(before[0]) if rng.random() < 0.1}
    gone |= lost

    def trees(versions: Any) -> list[str]:
        return [tree_id("", each) for each in versions]

    def named(nodes: pa.Table) -> set[str]:
        layout, storage = repository.layout, repository.storage
        rows = nodes.to_pylist()
        found = [
            layout.read_node(storage, row["node_id"], "", entry_count=row["entry_count"])
            for row in rows
        ]
        return {each for some in found for each in texts(some) if "://" not in each}

    spans = [(each, min(k for k in now if k >= each)) for each in sorted(gone)]
    if before[-1] < numbers[-1]:
        spans.append((before[-1] + 1, numbers[-1]))
    try:
        found = changes_since(states, trees([*before, *lost]), trees(gone), trees(now))
    except Refused as error:
        assert error.kind == "missing_tree"
        assert any(c not in replay.commits for a, b in spans for c in range(a, b + 1))
        return

    def files(version: int) -> set[str]:
        """As the writer means them: the log need not rebuild each version any more."""
        cdc = [a["cdc"]["path"] for a in table.actions[version] if "cdc" in a]
        changes = {each for each in map(replay.address, cdc) if each is not None}
        return changes | {f for add in table.states[version].values() for f in replay.named(add)}

    live = {file for each in now for file in files(each)}
    wanted = {file for each in gone for file in files(each)} - live
    others = {f for a, b in spans for each in range(a, b) for f in files(each)} | live
    released = named(found.released)
    assert wanted <= released <= wanted | others
    new = replay.files(numbers[-1])
    added = set() if before[-1] == numbers[-1] else new - replay.files(before[-1])
    assert added <= named(found.needed) <= (new if added or found.needed.num_rows else set())


def named_in(replay: Replay) -> set[str]:
    """The files that any commit of the log names."""
    found = set[str]()
    for path in replay.commits.values():
        for action in replay.actions(path):
            for kind in ("add", "remove"):
                found |= {*replay.named(action[kind])} if kind in action else set()
            if "cdc" in action:
                found |= {address for address in [replay.address(action["cdc"]["path"])] if address}
    return found


def go_on(table: DeltaWriter, rng: Random, *, until: int) -> None:
    """More commits, until a time. They need no file that is gone."""
    files = {each.relative_to(table.root).as_posix() for each in table.root.rglob("*")}
    table.adopted = [each for each in table.adopted if each in files]
    replay, restore = Replay(table.root), table.restore
    whole = [each for each in replay.times if replay.files(each) <= files]

    def restore_whole(version: int | None = None) -> list[Action]:
        return restore(rng.choice(whole) if version is None else version)

    table.restore = restore_whole  # type: ignore[method-assign]
    for _ in range(rng.randrange(5)):
        if table.now >= until - HOUR:
            break
        table.step()
        if rng.random() < 0.2:
            table.checkpoint(rng.choice(KINDS))
    table.now = max(table.now, until - HOUR)
    if rng.random() < 0.15:
        table.clean()


def planned(lake: DeltaLake, mode: str, patch: pytest.MonkeyPatch) -> RunReport:
    """The plan of a run. An incremental one lists nothing."""
    listed = list[str]()

    def plan(storage: Storage, *given: Any, **more: Any) -> Any:
        found = plan_listing(storage, *given, **more)
        listed.extend(each.prefix for each in found.items)
        return found

    patch.setattr("ebbtide.gc.store.plan_listing", plan)
    report = lake.collector(mode=mode).plan()
    assert report.state == "planned", report.error
    assert bool(listed) is (report.mode == "clean")
    return report


@randomized("incremental runs of Delta tables")
def test_incremental_runs_find_what_the_log_names(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its candidates are those of a clean run that a commit names, and that are new to the log or
    were young in the run before."""
    rng = Random(seed)
    keeping = replace(random_keeping(rng), grace=rng.choice((1, 2)))
    start = NOW - 20 * DAY
    table = random_table(tmp_path / "lake", rng, now=start)
    table.litter(start, int(keeping.grace * DAY), nests=False)
    lake = DeltaLake(table.root, keeping)
    assert isinstance(lake.open(), Releasing)
    if table.head not in Replay(table.root).times:
        return
    now = start
    lake.clock.advance(at(now) - lake.clock.host_now())
    report = planned(lake, "auto", monkeypatch)
    assert report.mode == "clean"
    for _ in range(3):
        swept = lake.collector().sweep(report.run_id)
        assert swept.state == "swept", swept.error
        left, cutoff = lake.files(), now - keeping.grace * DAY
        young = {
            each for each in left if (table.root / each).stat().st_mtime_ns / 1_000_000 > cutoff
        }
        now += rng.randrange(DAY, 5 * DAY)
        lake.clock.advance(at(now) - lake.clock.host_now())
        go_on(table, rng, until=now)
        table.litter(now, int(keeping.grace * DAY), nests=False)
        if rng.random() < 0.3:
            keeping = replace(random_keeping(rng), grace=keeping.grace)
            lake.open().set_policy(None)
            (table.root / "_ebbtide" / "policy.json").write_text(json.dumps(keeping.mapping()))
        if table.head not in Replay(table.root).times:
            return
        replay = Replay(table.root)
        wanted, names = replay.candidates(keeping, now), named_in(replay)
        report = planned(lake, "incremental", monkeypatch)
        found = {*candidates(report)}
        if report.mode == "clean":
            assert "lost one of the commits" in str(report.mode_reason), report.mode_reason
            assert found == wanted
            continue
        assert found <= wanted, found - wanted
        # Orphans, and checksums whose files went, wait for a clean run.
        assert wanted & names <= found, (wanted & names) - found
        assert found - names <= young
    lake.swept(mode="clean")
    assert not Replay(table.root).candidates(keeping, now) - {
        each for each in lake.files() if each.endswith(".crc")
    }


def changed_lake(tmp_path: Path) -> tuple[DeltaWriter, DeltaLake]:
    """A table after a swept run, whose older versions have expired since."""
    table = DeltaWriter(tmp_path / "lake", Random(1), now=NOW - 30 * DAY)
    for _ in range(2):
        table.commit([*map(table.remove, table.chosen()), *table.adds(2)], {})
    lake = DeltaLake(table.root, Keeping(last=1, grace=1))
    assert lake.swept().mode == "clean"
    table.commit([*map(table.remove, table.states[-1].values()), *table.adds(2)], {})
    return table, lake


def test_a_file_of_a_new_commit_that_is_not_there_costs_a_clean_run(tmp_path: Path) -> None:
    """A path that was decoded wrongly would look like this."""
    table, lake = changed_lake(tmp_path)
    report, replay = lake.collector(mode="auto").plan(), Replay(table.root)
    wanted = {
        each for each in replay.candidates(Keeping(last=1, grace=1), NOW) if each[-4:] != ".crc"
    }
    assert (report.mode, {*candidates(report)}) == ("incremental", wanted)
    assert wanted
    path = min(replay.files(table.head))
    (table.root / path).unlink()
    refused = lake.collector(mode="auto").plan()
    assert refused.error is not None
    assert refused.error["kind"] == "missing_object"


def test_a_log_that_was_cleaned_up_costs_a_clean_run(tmp_path: Path) -> None:
    table, lake = changed_lake(tmp_path)
    wanted = lake.planned()
    table.checkpoint("classic")
    for version in range(table.head):
        (table.log / f"{version:020d}.json").unlink()
    report = lake.collector(mode="auto").plan()
    assert (report.mode, {*candidates(report)}) == ("clean", wanted)
    assert "lost one of the commits" in str(report.mode_reason)
