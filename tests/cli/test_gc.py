"""`gc`: plans, sweeps, runs, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ebbtide.api.engines import chosen_master
from ebbtide.errors import Failed
from ebbtide.settings import Settings
from ebbtide.storage import DeleteOutcome, LocalStorage
from tests.cli.conftest import AT_ONCE, SHORT, Ebbtide, Write
from tests.cli.test_app import program
from tests.support.cold import list_as
from tests.support.engines import shared_session


@pytest.mark.usefixtures("expired")
def test_runs_by_the_beginning_of_their_ids_and_the_newest(lake: Ebbtide) -> None:
    """For each command that takes a run. Nothing is done where several are meant."""
    assert "no runs yet" in lake("gc runs lake").out
    assert "has no run yet" in lake("gc show lake latest", code=1).err
    older, newest = (lake.json("gc plan lake", *SHORT) for _ in range(2))
    pairs = zip(older["run_id"], newest["run_id"], strict=True)
    shared = "".join(left for left, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    only = newest["run_id"][: len(shared) + 1]

    assert lake.json("gc show lake latest")["run_id"] == newest["run_id"]
    assert lake.json("gc show lake", only)["run_id"] == newest["run_id"]
    assert lake.json("gc verify lake", only)["run_id"] == newest["run_id"]
    for each in (("show",), ("sweep", "--yes"), ("undo",), ("purge", "--yes"), ("verify",)):
        lake.refuses("ref_ambiguous", "gc", each[0], "lake", shared, *each[1:])
        lake.refuses("run_not_found", "gc", each[0], "lake", "nonsense", *each[1:])
    swept = lake("gc sweep lake", only, *SHORT, "--quarantine", "1d", "--yes", "--json")
    assert (swept.document["run_id"], swept.document["state"]) == (newest["run_id"], "swept")
    undone = lake.json("gc undo lake latest")
    assert (undone["run_id"], undone["state"]) == (newest["run_id"], "undone")


@pytest.mark.usefixtures("expired")
def test_cold_and_locked_files_are_named(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that says what buckets say: a class for each file, and locks."""
    list_as(monkeypatch, "GLACIER")
    planned = lake("gc plan lake", *SHORT)
    assert "storage classes of 1 of 1 candidate, as the listing gives them:" in planned.out
    row = next(line for line in planned.out.splitlines() if line.startswith("GLACIER"))
    assert row.split() == ["GLACIER", "1", "3", "B", "1", "3", "B", "1"]
    assert "a quarantine cannot copy them" in planned.err

    def refuse(_self: LocalStorage, addresses: list[str]) -> list[DeleteOutcome]:
        locked = "its versions are locked: mode GOVERNANCE, until 2031-01-01 00:00 UTC"
        return [DeleteOutcome(address, "failed", locked) for address in addresses]

    monkeypatch.setattr(LocalStorage, "delete_versions", refuse)
    asked = ("--quarantine", "none", "--delete-versions", "--yes")
    swept = lake("gc sweep lake", *SHORT, *asked, code=4)
    assert "1 failed file is hidden: an object lock keeps the versions" in swept.out
    assert "kept by a lock versions of 1 file, 3 B, which failed" in swept.out
    report = lake.json("gc show lake latest")
    assert report["locked_count"] == report["failed_count"] == 1
    assert report["locked_bytes"] == 3


def test_plan_sweep_show(lake: Ebbtide, expired: str) -> None:
    planned = lake.json("gc plan lake", *SHORT)
    assert planned.keys() >= {"listed_count", "missing_count", "failed_count", "revived_count"}
    assert (planned["state"], planned["candidate_count"]) == ("planned", 1)
    candidates = pq.read_table(f"{planned['run_path']}/candidates").to_pylist()
    assert [(row["kind"], row["size_bytes"]) for row in candidates] == [("object", 3)]
    assert lake("fs cat lake", expired, "a").out == "old"

    run_id = planned["run_id"]
    shown = lake.json("gc show lake", run_id, "--candidates")
    assert [row["address"] for row in shown["candidates"]] == [candidates[0]["address"]]
    address = candidates[0]["address"]
    assert [(row["name"], row["commit_id"]) for row in shown["candidates"]] == [("a", expired)]
    named = lake("gc show lake", run_id, "--candidates").out
    assert re.search(r"^kind +size +modified +name\nobject .* a$", named, re.M)
    assert address not in named
    both = lake("gc show lake", run_id, "--addresses").out
    assert re.search(rf"^object .* {address} +a$", both, re.M)
    assert lake.json("explain lake", address)["name"] == "a"

    swept = lake.json("gc sweep lake", run_id, *AT_ONCE)
    assert (swept["state"], swept["deleted_count"], swept["deleted_bytes"]) == ("swept", 1, 3)
    assert lake("fs cat lake", expired, "a", code=1).err.count(run_id) == 1
    assert lake("fs cat lake main a").out == "new"
    lake.refuses("plan_used", "gc sweep lake", run_id, *AT_ONCE)
    runs = lake.json("gc runs lake")["runs"]
    assert [(run["run_id"], run["state"]) for run in runs] == [(run_id, "swept")]
    lake.refuses("run_not_found", "gc sweep lake --yes --quarantine none")


@pytest.mark.usefixtures("expired")
def test_verify(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = lake.json("gc plan lake", *SHORT)["run_id"]
    found = lake.json("gc verify lake", run_id)
    assert (found["verified"], found["difference_count"], found["path"]) == (True, 0, None)
    assert (found["checked"]["candidates"], found["checked"]["outcomes"]) == (1, 0)
    told = lake("gc verify lake", run_id).out
    assert re.search(rf"^run +{run_id} passes, .* UTC, by ebbtide 0", told, re.MULTILINE)
    assert re.search(r"^checked +1 candidate, 0 outcomes,", told, re.MULTILINE)
    swept = lake.json("gc sweep lake", run_id, *AT_ONCE)
    assert lake.json("gc verify lake", run_id)["checked"]["outcomes"] == 1

    (record,) = Path(swept["run_path"], "deleted").rglob("*.parquet")
    record.unlink()
    differs = lake.json("gc verify lake", run_id, code=3)
    assert not differs["verified"]
    assert differs["counts"] == {"unrecorded": 1, "gone": 1, "figure": 1}
    shown = lake("gc verify lake", run_id, code=3)
    (address,) = {each["address"] for each in differs["differences"]} - {None}
    assert address in shown.out
    assert differs["path"] in shown.out
    assert "does not pass: 2 differences" in shown.err

    def refuse(*_: object, **__: object) -> None:
        raise Failed("storage_error", "no writing here")

    monkeypatch.setattr("ebbtide.storage.local.LocalStorage.put", refuse)
    found = lake("gc verify lake", run_id, code=3)
    assert "the full list could not be written: no writing here" in found.err
    assert "unrecorded" in found.out


def test_run_asks_with_the_figures(
    lake: Ebbtide, expired: str, typing: Callable[[str], None]
) -> None:
    """No leaves the plan; yes sweeps. A plan that nobody swept is what `gc sweep` means."""
    typing("n\n")
    refused = lake("gc run lake", *SHORT)
    assert "quarantine 1 file (3 B) of lake, and close the expired commits?" in refused.err
    assert "keep_last 1" in refused.out
    assert lake("fs cat lake", expired, "a").out == "old"
    typing("y\n")
    assert "swept" in lake("gc sweep lake", *SHORT).out
    lake("fs cat lake", expired, "a", code=1)
    assert "swept" in lake("gc run lake", *AT_ONCE).out


@pytest.mark.usefixtures("expired")
def test_a_lost_file_is_told_by_the_run_and_afterwards(lake: Ebbtide, tmp_path: Path) -> None:
    files = (each for each in tmp_path.rglob("data/**/*") if each.is_file())
    (lost,) = (each for each in files if each.read_bytes() == b"new")
    lost.unlink()
    found = lake("gc run lake", *AT_ONCE)
    told = f"needed cannot be found, in no quarantine either: {lost.relative_to(lost.parents[2])}"
    assert found.err.count(f"1 file that is {told}") == 1
    shown = lake("gc show lake latest")
    assert shown.err.count(f"1 file that is {told}") == 1
    report = lake.json("gc show lake latest")
    assert (report["recovered"]["restored"], report["recovered"]["lost"]) == (0, 1)
    (incident,) = report["incidents"]
    assert told in incident
    assert incident in report["warnings"]


def test_more_than_the_allowed_share_is_refused(
    lake: Ebbtide, expired: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EBBTIDE_SHARE_MAX", "0.01")
    found = lake("gc run lake", *AT_ONCE, "--json", code=3)
    assert (found.document["state"], found.document["error"]["kind"]) == ("refused", "over_share")
    assert "error: " in found.err
    planned = lake("gc plan lake", *SHORT, "--run-dir", tmp_path / "runs", code=3)
    assert "would be deleted" in planned.out
    assert re.search(r"^allow +ebbtide .*gc sweep .*lake \w{32} --allow-share", planned.out, re.M)
    assert lake("fs cat lake", expired, "a").out == "old"
    done = lake.json("gc run lake", *SHORT, "--allow-share", "--yes", "--quarantine", "none")
    assert done["state"] == "swept"


@pytest.mark.drawn("whole programs")
def test_a_process_of_its_own_says_nothing_of_spark(
    lake: Ebbtide, expired: str, tmp_path: Path
) -> None:
    """Spark's log reaches neither stdout nor stderr, and Python's path needs no help."""
    environment = {"EBBTIDE_STORE": str(tmp_path / "store")}
    done = program("gc", "run", "lake", *AT_ONCE, "--json", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["deleted_count"] == 1
    assert lake("fs cat lake main keep").out == "1"
    assert "has expired" in lake("fs cat lake", expired, "a", code=1).err


def test_wrong_calls(lake: Ebbtide, tmp_path: Path) -> None:
    for words in ("run lake", "run --all", "give-up lake main --reason=x"):
        assert "--yes" in lake.refuses("invalid_argument", "gc", *words.split(), code=2).err
    # What is wrong with the names is said first.
    lake.refuses("run_not_found", "gc sweep lake")
    for name in ("lakes", f"icechunk:{tmp_path}/no", f"delta:{tmp_path}/no"):
        lake.refuses("repository_not_found", "gc", "run", name, code=2)
    for grace, kind in (("1s", "unsafe_grace"), ("20", "invalid_duration")):
        lake.refuses(kind, "gc plan lake --grace", grace, code=2)
    assert not list((tmp_path / "store").rglob("plan.json"))


@pytest.mark.usefixtures("expired")
def test_modes(lake: Ebbtide) -> None:
    run = ("gc", "run", "lake", *AT_ONCE, "--json")
    first = lake(*run, "--mode", "incremental").document
    assert (first["mode"], first["mode_reason"]) == ("clean", "no run was swept before")
    second = lake(*run).document
    assert (second["mode"], second["previous_id"]) == ("incremental", first["run_id"])
    shown = lake("gc plan lake", *SHORT).out
    assert f"incremental: continues from run {second['run_id']}" in shown
    assert lake(*run, "--mode", "clean").document["mode"] == "clean"
    assert lake(*run, "--mode", "fast", code=2).error_kind == "invalid_argument"


@pytest.mark.usefixtures("expired")
def test_sizes_of_candidates_alone(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same goes; of what stays no size is told, rather than a wrong one."""
    plan = ("gc", "plan", "lake", *SHORT)
    whole = lake.json(*plan)
    planned = lake.json(*plan, "--sizes", "candidates")
    names = ("listed", "live", "protected", "young", "candidate")
    assert all(planned[f"{name}_count"] == whole[f"{name}_count"] for name in names)
    assert (planned["live_bytes"], planned["kinds"]["object"]["bytes_total"]) == (None, None)
    assert planned["candidate_bytes"] == whole["candidate_bytes"]
    shown = lake("gc show lake", planned["run_id"])
    assert (shown.out.count("unknown"), "None" in shown.out) == (2, False)

    monkeypatch.setenv("EBBTIDE_SIZES", "candidates")
    assert lake.json(*plan)["live_bytes"] is None
    told = lake("gc sweep lake", planned["run_id"], *AT_ONCE).out
    summary = told.partition("\nrun ")[2]
    assert ("unknown" in summary, "--sizes all" in summary) == (False, True)
    told = lake(*plan, "--sizes", "all").out
    assert "--sizes all" not in told
    lake.refuses("invalid_argument", *plan, "--sizes", "some", code=2)


def test_no_java(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.gc.engines.spark.jvm._candidates", list)
    # A test before this one may have left its session.
    monkeypatch.setattr("ebbtide.gc.engines.spark.session._is_active", lambda: False)
    lake.refuses("java_not_found", "gc plan lake --master local[1]")
    monkeypatch.setenv("EBBTIDE_ENGINE", "spark")
    lake.refuses("java_not_found", "gc plan lake")
    assert lake.json("gc plan lake --engine duckdb")["engine"] == "duckdb"


@pytest.mark.parametrize("lacking", ["PySpark", "Java 17 or newer"])
def test_without_spark_and_without_a_choice(
    lake: Ebbtide,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lacking: str,
) -> None:
    """The run is on DuckDB, and one line says why."""
    monkeypatch.delenv("EBBTIDE_SPARK_MASTER")
    monkeypatch.setattr("ebbtide.gc.engines.spark.jvm._candidates", list)
    if lacking == "PySpark":
        monkeypatch.setattr("ebbtide.imports.find_spec", lambda _name: None)
    assert lake.json("gc plan lake")["engine"] == "duckdb"
    told = [each for each in caplog.messages if "DuckDB carries out the run" in each]
    assert len(told) == 1
    assert f"Spark needs {lacking}, which is not here" in told[0]


@pytest.mark.parametrize(
    ("variables", "asked", "expected"),
    [
        ("", None, "local[*]"),
        ("", "spark", "local[*]"),
        ("", "duckdb", "duckdb"),
        ("", "none", "duckdb"),
        ("", "spark://one:7077", "spark://one:7077"),
        ("ENGINE=duckdb", None, "duckdb"),
        ("ENGINE=duckdb", "spark", "local[*]"),
        ("ENGINE=duckdb", "local[1]", "local[1]"),
        ("ENGINE=spark", None, "local[*]"),
        ("ENGINE=spark", "none", "duckdb"),
        ("SPARK_MASTER=none", None, "duckdb"),
        ("SPARK_MASTER=none", "spark", "local[*]"),
        ("SPARK_MASTER=sc://two", None, "sc://two"),
        ("SPARK_MASTER=sc://two", "spark", "sc://two"),
        ("SPARK_MASTER=sc://two ENGINE=duckdb", None, "duckdb"),
        ("SPARK_MASTER=none ENGINE=spark", None, "local[*]"),
    ],
)
def test_the_engine_that_is_chosen(
    variables: str, asked: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EBBTIDE_SPARK_MASTER")
    for name, value in (each.split("=") for each in variables.split()):
        monkeypatch.setenv(f"EBBTIDE_{name}", value)
    assert chosen_master(Settings(), asked) == expected


@pytest.mark.spark
def test_a_run_on_spark(lake: Ebbtide, expired: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    session = shared_session()

    class Shared:
        def session(self) -> SparkSession:
            return session

    def launch(*, master: str, conf: dict[str, str], **_: object) -> Shared:
        asked.append((master, conf))
        return Shared()

    monkeypatch.setattr("ebbtide.gc.engines.spark.session.launch", launch)
    monkeypatch.setattr("ebbtide.api.engines.atexit.register", lambda _ended: None)
    monkeypatch.setenv("EBBTIDE_SPARK_CONF", "spark.a=1,spark.b=2")
    conf = ("--conf", "spark.b=3", "--conf", "spark.c=4")
    lake("gc plan lake", *SHORT, "--master", "spark://one", *conf)
    monkeypatch.setenv("EBBTIDE_SPARK_MASTER", "spark://two")
    found = lake.json("gc run lake", *AT_ONCE)
    assert (found["state"], found["deleted_count"]) == ("swept", 1)
    first, *others = asked
    assert first == ("spark://one", {"spark.a": "1", "spark.b": "3", "spark.c": "4"})
    assert others == [("spark://two", {"spark.a": "1", "spark.b": "2"})]
    assert re.fullmatch(r"Spark [\d.]+ on local\[2\]", found["engine"])
    assert lake("fs cat lake", expired, "a", code=1).err


def test_give_up(lake: Ebbtide, write: Write, typing: Callable[[str], None]) -> None:
    old = write(a="1")
    write(a="2")
    lake.refuses("commit_in_use", "gc give-up lake main --reason x --yes")
    typing("n\n")
    assert old in lake("gc give-up lake main~1 --reason", "disk lost").err
    assert lake("fs cat lake", old, "a").out == "1"
    lake("gc give-up lake main~1 --reason", "disk lost", "--yes")
    assert "disk lost" in lake("fs cat lake", old, "a", code=1).err


@pytest.mark.parametrize(
    ("command", "quarantine", "told"),
    [
        ("run", "none", "Neither 'gc undo' nor the bucket can restore them"),
        ("sweep", "1d", "Until then 'gc undo' restores the files; afterwards nothing does"),
    ],
)
def test_versions_are_deleted_after_a_word(
    lake: Ebbtide, expired: str, command: str, quarantine: str, told: str
) -> None:
    """What can restore them afterwards is said before they go; without the option, nothing."""
    lake("gc plan lake", *SHORT)
    words = ("gc", command, "lake", *SHORT, "--quarantine", quarantine, "--yes")
    found = lake(*words, "--delete-versions")
    assert "--delete-versions: " in found.err and told in found.err
    assert lake("fs cat lake", expired, "a", code=1).err
    lake("gc plan lake", *SHORT)
    assert "--delete-versions" not in lake(*words).err
