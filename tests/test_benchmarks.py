"""Each benchmark runs on today's code at its smallest scale, and its own check of the result can
fail.

All programs of ours are forked, but the benchmark of Arvados works in this process. The figures do
not matter here: the system keeps its caches, and nobody waits for the disk.
"""

import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import httpx
import psutil
import pytest

from benchmarks import (
    arvados,
    arvados_store,
    bottom_line,
    delta,
    every,
    iceberg,
    icechunk,
    lakefs,
    large_objects,
    measuring,
    pages,
    prepare_uncommitted,
    reclaim,
    results,
    select_commits,
    server,
    small_objects,
    usage,
)
from benchmarks.iceberg_table import Writer
from benchmarks.measuring import Measured, Peaks
from ebbtide.formats.lakefs.repository import GRACE, LakefsRepository
from ebbtide.formats.lakefs.server import LOCAL, AnsweredRules, Namespace
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.ids import new_id
from ebbtide.model import Ref
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from scripts import figures
from tests.formats.lakefs.fake import NAMESPACE, FakeCommit, FakeLakefs
from tests.support.clock import ManualClock
from tests.support.engines import INLINE
from tests.support.forking import forks
from tests.support.loops import without_loop
from tests.support.requirements import require_or_skip
from tests.support.server import WAIT_SECONDS, eventually

DELTA_SPARK = os.environ.get(delta.SPARK_VARIABLE, "")
SMALLEST = {
    "arvados": ("--collections", "20", "--blocks", "2"),
    "bottom_line": ("--scale", "0.0002", "--runs", "cold", "incremental"),
    "bottom_line_s3": ("--scale", "0.00006", "--delay", "0.001", "--url", "URL"),
    "cluster": (
        *("--scale", "0.0001", "--runs", "alone", "--master", "none"),
        *("--url", "file://DIR/served", "--served", "DIR/served"),
    ),
    "delta": ("--files", "200", "--engines", "duckdb"),
    "icechunk": ("--commits", "6", "--chunks", "5", "--array-chunks", "20", "--keep", "2"),
    "iceberg": ("--files", "60", "--snapshots", "8", "--engines", "duckdb"),
    "join": (
        *("--listed", "0.001", "--kept", "0.001", "--left", "0.0002", "--partitions", "2"),
        *("--ways", "none", "duckdb"),
    ),
    "lakefs": (
        *("--objects", "40", "--commits", "10", "--server", "URL", "--namespace", "URL"),
        *("--directory", "DIR"),
    ),
    "large_objects": ("--mib", "1", "--storage", "disk", "--only", "read by API, one request"),
    "many_collections": ("--collections", "20"),
    "pages": ("--commits", "100", "--candidates", "1000", "--visits", "1"),
    "prepare_uncommitted": ("--objects", "200", "--branches", "5"),
    "reclaim": (
        *("--rounds", "1", "--uploads", "2", "--entries", "5"),
        *("--releases-seconds", "0.05", "--lease-seconds", "0.1"),
    ),
    "select_commits": ("--commits", "200", "--branches", "5", "--shape", "bushy"),
    "server": ("--requests", "2", "--listed", "20", "--committed", "20"),
    "small_objects": ("--requests", "4", "--listed", "20", "--databases", "SQLite"),
    "usage": ("--scale", "0.0002", "--rounds", "1", "--engines", "duckdb"),
}


@pytest.fixture(autouse=True)
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are forked where their modules are loaded. Results go to the test's folder."""
    for module in (results, figures):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "_RAN", [])
    monkeypatch.setenv("EBBTIDE_SPARK_MASTER", "none")
    monkeypatch.setattr(measuring, "PROGRAM", command("ebbtide", "tests.support.loaded_program"))
    monkeypatch.setattr(measuring, "itself", forked_benchmark)
    monkeypatch.setattr(arvados, "in_process", arvados.collect)
    monkeypatch.setattr(arvados_store, "POOL", ThreadPool)
    monkeypatch.setattr(arvados_store, "_makers", [])
    for each in (large_objects, pages, server, small_objects):
        monkeypatch.setattr(each, "served", forked_server)
    monkeypatch.setattr(bottom_line, "DROP_CACHES", tmp_path / "drop_caches")
    for peer in (delta, iceberg):
        monkeypatch.delenv(peer.SPARK_VARIABLE, raising=False)
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(measuring, "GRACE", "0s")
    monkeypatch.setattr(measuring, "AGE_SECONDS", 0)


def command(name: str, module: str) -> str:
    """The path of a command that is forked."""
    return str(forks().command(name, module) / name)


def forked_benchmark(name: str) -> list[str]:
    return [command(f"benchmark-{name}", f"benchmarks.{name}")]


@contextmanager
def forked_server(arguments: list[str], **environment: str) -> Iterator[server.Running]:
    """Runs a server that is forked: the program's, or the bare application."""
    module, words = "tests.support.forked_bare", arguments[-2:]
    if "serve" in arguments:
        module, words = "tests.support.forked", arguments[len(server.PROGRAM) :]
        results.ran(["ebbtide", *words], environment)
    with NamedTemporaryFile("r") as said:
        where = Path(said.name)
        started = forks().start(module, *words, environment=os.environ | environment, out=where)
        try:
            eventually(lambda: started.poll() is not None or where.read_text().endswith("\n"))
            yield server.Running(
                where.read_text().splitlines()[0].split()[-1], psutil.Process(started.pid)
            )
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(WAIT_SECONDS)


def run(name: str, directory: Path, url: str = "") -> None:
    benchmark = importlib.import_module(f"benchmarks.{name}")
    places = {"URL": url, "DIR": str(directory)}
    options = list(SMALLEST[name])
    for word, place in places.items():
        options = [each.replace(word, place) for each in options]
    options += ["--save", name]
    before = dict(os.environ)
    with patch.object(sys, "argv", [f"{name}.py", *options]):
        without_loop(lambda: benchmark.main(options))
    assert dict(os.environ) == before


def check_result(name: str) -> None:
    """The benchmark's table can show what it saved, and the commands that it names exist."""
    table = figures.declared()["s3" if name == "bottom_line_s3" else name.replace("_", "-")]
    found = figures.read(name)
    assert found is not None
    assert list(filter(None, map(figures.unknown_run, found["ran"]))) == []
    drawn = figures.drawn({**table, "results": {name: ""}})
    head, _, *rows = [line.split(" | ") for line in drawn.splitlines() if line.startswith("|")]
    cells = zip(*([cell.strip("| ") for cell in row] for row in (head, *rows)), strict=True)
    assert {column for column, *shown in cells if not any(shown)} == UNMEASURED.get(name, set())


UNMEASURED = {
    "bottom_line": {"clean, warm, s", "common method, cold, s"},
    "cluster": {"two workers, s", "workers die, s"},
    "iceberg": {"processor s, x the procedures"},
    "lakefs": {"lakeFS's job, s", "lakeFS's job, MiB"},
}
"""The columns that have nothing at the smallest scale."""


def test_every_benchmark_has_a_smallest_scale() -> None:
    """All take some 70 minutes; two need servers that are not started."""
    folder = Path(measuring.__file__).parent
    programs = {each.stem for each in folder.glob("*.py") if "__main__" in each.read_text()}
    assert programs - {"every", "peers", "iceberg_peers"} == SMALLEST.keys()
    plan = list(every.planned())
    assert sum(minutes for *_, minutes in plan) <= 70
    named = {command[2].removeprefix("benchmarks.") for _, command, _ in plan}
    assert named == SMALLEST.keys() - {"cluster", "lakefs"}
    words = {word for _, command, _ in plan for word in command}
    assert words & {"DIR", "URL", "COMMAND", "ID:SECRET"} == {"DIR"}, "only DIR is filled in"


def test_all_benchmarks_go_on_where_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each is told before it begins, with its minutes."""
    fails, works = ([sys.executable, "-c", f"raise SystemExit({code})"] for code in (1, 0))
    plan = [("one", fails, 2), ("two", works, 3)]
    monkeypatch.setattr(every, "planned", lambda: iter(plan))
    assert every.main([str(tmp_path)]) == 1
    said = capfd.readouterr().out
    assert "2 benchmarks, about 5 minutes" in said
    assert said.index("one: about 2 minutes") < said.index("two: about 3 minutes")
    assert said.endswith("failed: one\n")
    assert every.main([str(tmp_path), "--only", "two"]) == 0
    asks = "import os, sys; print('has', os.listdir(sys.argv[1])); open(sys.argv[1] + '/a', 'w')"
    plan += [(name, [sys.executable, "-c", asks, "DIR"], 1) for name in ("three", "four")]
    assert every.main([str(tmp_path), "--only", "three", "four"]) == 0
    assert capfd.readouterr().out.count("has []") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(SMALLEST.keys() - {"bottom_line_s3", "lakefs", "pages"}))
def test_smallest_scale(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)
    check_result(name)


def test_smallest_scale_beside_vacuum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's VACUUM deletes the same files."""
    if not DELTA_SPARK:
        require_or_skip("delta-spark", f"{delta.SPARK_VARIABLE} names no environment")
    monkeypatch.setenv(delta.SPARK_VARIABLE, DELTA_SPARK)
    run("delta", tmp_path)
    check_result("delta")
    found = figures.read("delta")
    assert found is not None
    assert {f"VACUUM, {each}" for each in delta.STEPS} <= found["figures"]["runs"].keys()


def test_smallest_scale_on_s3(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "AGE_SECONDS", 1)  # S3 tells whole seconds
    run("bottom_line_s3", tmp_path, f"{s3_url}/{new_id()}")
    check_result("bottom_line_s3")


@pytest.mark.browser
def test_smallest_scale_in_a_browser(tmp_path: Path) -> None:
    if not (os.environ.get("EBBTIDE_TEST_CHROMIUM") or shutil.which("chromium")):
        require_or_skip("chromium", "no chromium on PATH, and EBBTIDE_TEST_CHROMIUM names none")
    run("pages", tmp_path)
    check_result("pages")


class FakeClient:
    """A client of a fake lakeFS server: the benchmark's calls, and runs in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.repositories_api = self.branches_api = self
        self.internal_api = self.experimental_api = self

    def create_repository(self, created: Any) -> None:
        place = self.directory / created.name
        self.storage = open_storage(str(place))
        self.namespace = Namespace(NAMESPACE, f"{LOCAL}{place}/")
        self.clock = ManualClock(datetime.now(UTC))
        self.server = FakeLakefs(self.storage, self.clock)
        self.state = self.server.state

    def set_gc_rules(self, _name: str, rules: Any) -> None:
        self.state.rules = AnsweredRules(rules.default_retention_days, {})

    def get_branch(self, _name: str, branch: str) -> Any:
        return SimpleNamespace(commit_id=self.state.branches[branch].head)

    def create_commit_record(self, _name: str, made: Any) -> None:
        date = datetime.fromtimestamp(made.creation_date, UTC)
        commit = FakeCommit(made.commit_id, tuple(made.parents), date, made.metarange_id, {})
        self.state.commits[made.commit_id] = commit

    def hard_reset_branch(self, _name: str, branch: str, *, ref: str) -> None:
        self.state.reset(branch, ref)

    def run(self, _lake: lakefs.Lake, step: str, *arguments: str) -> Measured:
        settings = Settings(share_max=1.0)
        repository = LakefsRepository(self.server, self.namespace, self.storage, clock=self.clock)
        options = RunOptions.of(settings, sessions=GRACE, patience=timedelta(0))
        collector = Collector(repository, engine=INLINE, options=options)
        report = collector.plan() if step == "plan" else collector.sweep(arguments[0])
        assert report.error is None, report.error
        return Measured(1.0, Peaks(), json.dumps(report.to_json()))


@pytest.fixture
def fake_lakefs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The benchmark of lakeFS works on a fake server."""
    client = FakeClient(tmp_path)
    monkeypatch.setattr(lakefs, "connect", lambda _server: client)
    monkeypatch.setattr(lakefs, "ours", client.run)
    return client


@pytest.mark.usefixtures("fake_lakefs")
def test_smallest_scale_of_lakefs(tmp_path: Path) -> None:
    run("lakefs", tmp_path, "s3://lake")
    check_result("lakefs")


def test_lakefs_tells_an_object_that_a_sweep_left(
    fake_lakefs: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_swept(lake: lakefs.Lake, step: str, *arguments: str) -> Measured:
        return fake_lakefs.run(lake, "plan" if step == "sweep" else step, *arguments)

    monkeypatch.setattr(lakefs, "ours", nothing_swept)
    with pytest.raises(SystemExit, match=r"0 too many, [1-9][0-9]* too few"):
        run("lakefs", tmp_path, "s3://lake")


def test_checks_tell_another_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on S3 and a cluster use that of `bottom_line`; those by size use that of `server`."""
    monkeypatch.setattr(bottom_line, "show", lambda *_arguments: None)
    history: Any = SimpleNamespace(address=lambda number: "ab"[number])
    cold = bottom_line.Figures("cold", {}, 0)
    lake: Any = SimpleNamespace(context=SimpleNamespace(storage=open_storage(str(tmp_path))))
    page = httpx.Response(200, text="no files")
    checks: tuple[tuple[str, Callable[[], object]], ...] = (
        ("0 too many, 1 too few", lambda: bottom_line.check(cold, set(), history, {0})),
        ("1 too many, 0 too few", lambda: bottom_line.check(cold, {"a", "b"}, history, {0})),
        ("main", lambda: select_commits.check([Ref("main", "branch", "a")], {"b"})),
        ("0 not reclaimed, 1 lost", lambda: reclaim.check(lake, {"data/a/b"})),
        ("objects listed: 19, not 20", lambda: server.check("objects listed", 19, 20)),
        ("1 deleted too many, 1 too few", lambda: delta.check("x", "collect", {"a"}, {"b"})),
        ("they differ", lambda: usage.check({"plan": 1, "usage": 2})),
        ("nothing would be deleted", lambda: usage.check({"plan": 0, "usage": 0})),
        (r"the page run .200. does not show '1,000'", lambda: pages.check("run", page, "1,000")),
    )
    for told, check in checks:
        with pytest.raises(SystemExit, match=told):
            check()


@pytest.mark.parametrize(
    ("name", "replaced", "other", "told"),
    [
        ("arvados", "OWN_FILES", 4, "10 files deleted, not 12"),
        ("join", "measure", {"left": 199.0, "seconds": 0.0}, "another number of rows"),
        ("many_collections", "list_all", (19, 0.0), "list it by pages: 19, not 20"),
    ],
)
def test_a_run_tells_another_result(
    name: str,
    replaced: str,
    other: object,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The benchmark has another constant, or a function that answers so."""
    is_constant = replaced.isupper()
    value = other if is_constant else lambda *_arguments: other
    monkeypatch.setattr(f"benchmarks.{name}.{replaced}", value)
    with pytest.raises(SystemExit, match=told):
        run(name, tmp_path)


@pytest.mark.parametrize("broken", ["kept", "read"])
def test_icechunk_tells_another_set_of_files_and_a_damaged_snapshot(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its, mine = tmp_path / "its", tmp_path / "mine"
    for each in (its, mine):
        (each / "chunks").mkdir(parents=True)
    (mine / "chunks" / "a").touch()
    deleted = {"kept": "chunks/a", "read": "chunks/b"}[broken]
    step = Measured(1.0, Peaks(), json.dumps({"state": "swept", "seconds": {}} | COUNTED))
    found = icechunk.Comparison(*[{"dry run": step, "collect": step}] * 2)
    if broken == "read":
        (its / "chunks" / "a").touch()
    monkeypatch.setattr(icechunk, "digest", lambda _path: "other")
    told = {"kept": "not the same files: 1", "read": "Icechunk damaged"}[broken]
    with pytest.raises(SystemExit, match=told):
        icechunk.check(found, frozenset({deleted}), {"Icechunk": its, "Ebbtide": mine}, "values")


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("orphans", "script on PyIceberg: 0 too many, 1 too few"),
        ("planned", "Ebbtide, duckdb: 0 too many, 1 too few"),
        ("freed", "Ebbtide, duckdb: 1 too many, 0 too few"),
    ],
)
def test_iceberg_tells_what_was_not_found_and_what_stayed(
    broken: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan is young, a program finds one file less, or a file is dead that no run deletes."""
    build, check = Writer.build, iceberg.check

    def built(self: Writer, *shape: int) -> None:
        build(self, *shape)
        if broken == "orphans":
            os.utime(self.lake.warehouse / max(self.lake.orphans))
        elif broken == "freed":
            self.lake.freed.add(min(self.lake.files() - self.lake.freed - self.lake.orphans))

    def checked(program: str, found: set[str], expected: set[str]) -> None:
        fewer = broken == "planned" and program.startswith("Ebbtide")
        check(program, found - {min(found)} if fewer else found, expected)

    monkeypatch.setattr(Writer, "build", built)
    monkeypatch.setattr(iceberg, "check", checked)
    with pytest.raises(SystemExit, match=told):
        run("iceberg", tmp_path)


COUNTED = {
    f"{name}_count": 0 for name in ("listed", "live", "protected", "young", "candidate", "deleted")
}


def test_prepare_uncommitted_tells_another_number_of_addresses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = {"prepare": {"seconds": 1.0, "rows": [2], "sizes": [1]}, "bare": [1.0, 3]}
    monkeypatch.setattr(
        prepare_uncommitted, "in_fresh_process", lambda what, *_arguments: answers[what]
    )
    with pytest.raises(SystemExit, match="2 addresses, not 3"):
        prepare_uncommitted.report(tmp_path, None, tmp_path)


def test_reclaim_ends_where_nothing_is_reclaimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaim, "ReclaimThread", Mock())
    monkeypatch.setattr(reclaim, "LATE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(reclaim, "costs", lambda *_arguments: {})
    with pytest.raises(SystemExit, match="5 not reclaimed, 0 lost"):
        run("reclaim", tmp_path)
