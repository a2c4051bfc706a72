"""Several tables in one run, and commits that need files again while a run is at work."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ebbtide.audit.explain import Explainer
from ebbtide.errors import EbbtideError
from ebbtide.formats.capabilities import lost_of
from ebbtide.formats.delta.finding import find_tables
from ebbtide.formats.delta.reading import DeltaGuard
from ebbtide.formats.delta.repository import DeltaRepository
from ebbtide.text import date_text
from tests.formats.delta.lake import GRACE, DeltaLake, expectations, fixtures, lay, policy_of
from tests.support.icechunk_lake import candidates, told_of

LAST = "keep_last 1, grace 1d"
DAY = timedelta(days=1)


def test_tables_named_together_protect_what_clones_need(tmp_path: Path) -> None:
    source, clone = (lay(each, tmp_path) for each in ("clone_source", "clone_shallow"))
    needed = json.loads((fixtures() / "needed_by_clones.json").read_text())["clone_shallow"]
    now = source["now_ms"]
    for name in (f"{tmp_path}/**", f"{tmp_path}/clone_source,{tmp_path}/clone_shallow"):
        lake = DeltaLake(tmp_path, now_ms=now, name=f"delta:{name}")
        for text, expected in source["policies"].items():
            if "hold" in text:
                continue  # a version's number has the table's name here
            policy, grace = policy_of(text)
            lake.keep(policy)
            own = {f"clone_source/{each}" for each in expected["candidates"]}
            kept = {f"clone_source/{each}" for each in needed[text]["clone_source"]}
            theirs = clone["policies"][text]["candidates"]
            assert lake.planned(grace=grace) == (own - kept) | {
                f"clone_shallow/{f}" for f in theirs
            }


def test_alone_a_table_tells_that_its_clones_are_unknown(tmp_path: Path) -> None:
    facts = lay("clone_source", tmp_path)
    lake = DeltaLake(tmp_path / "clone_source", now_ms=facts["now_ms"])
    with lake.open().reading(lake.clock.now) as reading:
        assert any("shallow clones" in each for each in reading.roots().warnings)


def test_nested_tables_are_collected_as_tables_of_their_own(tmp_path: Path) -> None:
    facts = lay("nested", tmp_path)
    root = tmp_path / "nested"
    alone = DeltaLake(root, now_ms=facts["now_ms"])
    alone.keep(policy_of(LAST)[0])
    assert not any(each.startswith("inner/") for each in alone.planned(grace=DAY))
    inner = DeltaLake(root / "inner", now_ms=facts["now_ms"])
    inner.keep(policy_of(LAST)[0])
    both = DeltaLake(root, now_ms=facts["now_ms"], name=f"delta:{root}/**")
    own = {f"inner/{each}" for each in inner.planned(grace=DAY)}
    # Its own policy and holds would not count.
    refused = both.collector(grace=DAY).plan().error
    assert refused is not None
    assert refused["kind"] == "nested_root"
    shutil.rmtree(root / "inner" / "_ebbtide")
    assert both.planned(grace=DAY) == alone.planned(grace=DAY) | own


def test_a_table_below_a_partition_is_named_beside_the_others(tmp_path: Path) -> None:
    """All tables below a root are those outside folders of partitions."""
    rows = pa.table({"p": [1], "x": [1]})
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["p"])
    write_deltalake(str(tmp_path / "t/p=1/inner"), rows)
    assert find_tables(f"{tmp_path}/**").prefixes == ("t/",)
    both = find_tables(f"{tmp_path}/**,{tmp_path}/t/p=1/inner")
    assert both.prefixes == ("t/", "t/p=1/inner/")


@pytest.mark.parametrize("name", ["nowhere", "a,b", "a/**"])
def test_a_name_without_tables_is_not_found(name: str, tmp_path: Path) -> None:
    with pytest.raises(EbbtideError) as caught:
        DeltaLake(tmp_path, now_ms=0, name=f"delta:{tmp_path}/{name}").open()
    assert caught.value.kind == "repository_not_found"


@pytest.mark.parametrize("name", ["", ",", "{0},", "{0},,{0}", " "])
def test_a_missing_place_is_no_place(name: str, tmp_path: Path) -> None:
    lay("rs_plain", tmp_path)
    with pytest.raises(EbbtideError) as caught:
        DeltaLake(tmp_path, now_ms=0, name=f"delta:{name.format(tmp_path / 'rs_plain')}").open()
    assert caught.value.kind == "invalid_argument"


def test_a_table_that_is_named_twice_is_one(tmp_path: Path) -> None:
    """Its policy and records are those of the table. Names in another order are the same, too."""
    lay("rs_plain", tmp_path)
    lay("dvs", tmp_path)
    one, other = str(tmp_path / "rs_plain"), str(tmp_path / "dvs")

    def opened(name: str) -> DeltaRepository:
        return DeltaLake(tmp_path, now_ms=0, name=f"delta:{name}").open()

    found = opened(f"{one}, {one}/")
    assert found.identity.repository_id == opened(one).identity.repository_id
    assert found.storage.url == opened(one).storage.url
    ids = {opened(name).identity.repository_id for name in (f"{one},{other}", f"{other},{one}")}
    assert len(ids) == 1


class Busy:
    """The table `plain`, and a writer that adds all files of version 1 to it again."""

    def __init__(self, path: Path) -> None:
        facts = lay("plain", path)
        self.lake = DeltaLake(path / "plain", now_ms=facts["now_ms"])
        self.lake.keep(policy_of(LAST)[0])
        self.log = self.lake.path / "_delta_log"
        lines = [
            line
            for version in (0, 1)
            for line in (self.log / f"{version:020d}.json").read_text().splitlines()
            if line.startswith('{"add"')
        ]
        self.text = "\n".join(lines)
        self.files = {json.loads(line)["add"]["path"] for line in lines}
        assert self.files <= set(facts["policies"][LAST]["candidates"])

    def restore(self) -> None:
        (self.log / f"{12:020d}.json").write_text(self.text)

    @property
    def gone(self) -> set[str]:
        return self.files - self.lake.files()


@pytest.fixture
def busy(tmp_path: Path) -> Busy:
    return Busy(tmp_path)


def test_files_that_are_added_again_after_the_plan_stay(busy: Busy) -> None:
    lake = busy.lake
    report = lake.collector(grace=DAY).plan()
    assert busy.files <= {*candidates(report)}
    busy.restore()
    swept = lake.collector(grace=DAY, quarantine=timedelta(days=7)).sweep(report.run_id)
    assert swept.state == "swept", swept.error
    assert not busy.gone
    assert lake.files().isdisjoint({*candidates(report)} - busy.files)


def before(call: int, do: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, before whose call of this number something else happens."""
    calls = []

    def called(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            do()
        return function(*arguments)

    return called


@pytest.mark.parametrize("batch", [1, 4])
def test_a_file_that_is_added_again_leaves_its_batch(
    busy: Busy, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep goes on with all others. What went before the commit is told at the end."""
    monkeypatch.setattr(DeltaRepository, "batch_max", 1)
    monkeypatch.setattr(DeltaGuard, "__call__", before(batch, busy.restore, DeltaGuard.__call__))
    collector, there = busy.lake.collector(grace=DAY, quarantine=timedelta(days=7)), busy.files
    plan = collector.plan()
    others = {*candidates(plan)} - busy.files
    assert others
    report = collector.sweep(plan.run_id)
    gone = busy.gone
    assert len(gone) < batch  # only what went before the commit
    assert others.isdisjoint(busy.lake.files())
    assert report.counts["revived"].objects == len(there - gone)
    assert report.counts["quarantined"].objects == len(others | gone)
    told = told_of(report, "revived")
    assert told == dict.fromkeys(there - gone, "version 12 of table needs it")
    assert report.state == ("incomplete" if gone else "swept")
    if gone:
        assert report.error is not None
        assert "brings it back" in report.error["message"]
        assert busy.lake.collector().undo(report.run_id).state == "undone"
    assert not busy.gone


def test_a_file_that_is_added_again_after_the_last_batch_is_told(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.gc.sweep.lost_of", before(1, busy.restore, lost_of))
    report = busy.lake.collector(grace=DAY, quarantine=timedelta(days=7)).run()
    assert report.state == "incomplete"
    assert report.error is not None
    assert "version 12 of table needs" in report.error["message"]
    assert busy.gone == busy.files
    assert busy.lake.collector().undo(report.run_id).state == "undone"
    assert not busy.gone


@pytest.mark.parametrize("change", ["vanish", "change", "need more"])
def test_a_changed_log_stops_the_sweep(
    busy: Busy, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = busy.log / f"{11:020d}.json"
    text = '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"writerFeatures":["new"]}}'

    def do() -> None:
        if change == "vanish":
            newest.unlink()
        elif change == "change":
            newest.write_text(newest.read_text() + "\n")
        else:
            (busy.log / f"{12:020d}.json").write_text(text)

    monkeypatch.setattr(DeltaGuard, "__call__", before(1, do, DeltaGuard.__call__))
    before_it = busy.lake.files()
    report = busy.lake.collector(grace=DAY, quarantine=timedelta(days=7)).run()
    assert report.state == "incomplete", report
    assert report.error is not None
    wanted = "feature new" if change == "need more" else "is missing or changed"
    assert wanted in report.error["message"]
    assert {*before_it} - {*busy.lake.files()} <= {f"_delta_log/{newest.name}"}


def test_an_older_log_is_refused(busy: Busy) -> None:
    lake = busy.lake
    lake.swept(grace=DAY)
    (busy.log / f"{11:020d}.json").unlink()
    report = lake.collector(grace=DAY).plan()
    assert report.error is not None
    assert report.error["kind"] == "lost_commits"
    assert expectations("plain")["latest"] == 11


def test_explain_tells_the_versions_that_need_a_file(tmp_path: Path) -> None:
    """Against each version's own files, as deltalake has them."""
    facts = lay("rs_plain", tmp_path)
    lake = DeltaLake(tmp_path / "rs_plain", now_ms=facts["now_ms"])
    lake.keep(policy_of("keep_last 3, grace 7d")[0])
    having = defaultdict[str, set[str]](set)
    for version in range(8):
        for each in DeltaTable(str(lake.path), version=version).file_uris():
            having[each.rpartition("/")[2]].add(str(version))
    explainer = Explainer(lake.open(), engine=lake.engine, grace=GRACE)
    for address, versions in having.items():
        found = explainer.address(address)
        kept = versions & {"5", "6", "7"}
        assert {each.commit_id for each in found.keepers} == kept
        assert {each.commit_id for each in found.past_holders} == versions - kept
        assert found.state == ("kept" if kept else "unneeded")
        first, last = min(versions), max(versions)
        interval, *since = found.history
        assert f"{first} to {last} need it" in interval or first == last
        newest = f"the policy keeps {max(kept)} (" if kept else "the policy keeps none of them"
        assert newest in interval
        # Three newer versions made the last one that needed it expire.
        expired = lake.open().roots(None).commits[int(last) + 3].created_at if not kept else None
        words = f"the policy has not kept any of them since {date_text(expired)} UTC"
        assert since == ([] if kept else [words])
    for version in range(8):
        told = explainer.commit(str(version)).history
        assert [each.split(" since ")[0] for each in told] == (
            ["the policy has not kept it"] if version < 5 else []
        )


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({}, "the log keeps them until {:%Y-%m-%d %H:%M} UTC or longer (NAME)"),
        (
            {"NAME": "interval 2 days"},
            "the next checkpoint may end this for the oldest of them (NAME)",
        ),
        ({"delta.enableExpiredLogCleanup": "false"}, ""),
    ],
)
def test_an_undo_tells_until_when_versions_can_be_read(
    properties: dict[str, str], told: str, tmp_path: Path
) -> None:
    name = "delta.logRetentionDuration"
    configuration = {key.replace("NAME", name): value for key, value in properties.items()}
    for number in range(4):
        rows = pa.table({"id": [number]})
        write_deltalake(tmp_path / "t", rows, mode="overwrite", configuration=configuration)
        commit = tmp_path / f"t/_delta_log/{number:020d}.json"
        os.utime(commit, (1_790_000_000 + number * DAY.total_seconds(),) * 2)
    first = datetime.fromtimestamp(1_790_000_000, UTC)
    now = datetime.now(UTC) + 60 * DAY if "NAME" in properties else first + 10 * DAY
    lake = DeltaLake(tmp_path, now_ms=int(now.timestamp() * 1000), name=f"delta:{tmp_path}/**")
    for data in tmp_path.glob("t/*.parquet"):
        os.utime(data, (first.timestamp(),) * 2)
    lake.keep({"default": {"keep_last": 1}, "holds": {"0:t": "asked"}})
    report = lake.swept(grace=DAY, quarantine=timedelta(days=7))
    undone = lake.collector().undo(report.run_id)
    assert undone.quarantine is not None
    assert undone.quarantine["reopened_commits"] == 2
    # The held version 0 was not closed: the time of version 1 counts.
    assert undone.quarantine["readable_until"] == told.replace("NAME", name).format(
        first + 31 * DAY
    )
