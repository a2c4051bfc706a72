"""`gc run --all` and `gc plan --all`: every repository of the store, with one summary."""

from __future__ import annotations

import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ebbtide.cli.digests import FIGURES, html_of, text_of
from ebbtide.cli.fleet import at_once
from ebbtide.cli.output import Output
from ebbtide.cli.progress import StepProgress
from ebbtide.errors import Failed, Refused
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.report import RunReport
from ebbtide.interrupts import Interrupted
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.cli.conftest import AT_ONCE, FIRST_DAY, SHORT, Ebbtide
from tests.cli.test_interrupts import go_on
from tests.support.clock import ManualClock
from tests.support.templates import AGE, copy_store, date_files

RUN = ("gc", "run", "--all", *SHORT)
SWEEP = ("gc", "run", "--all", *AT_ONCE)
NAMES = ("east", "north", "west")
LAST = "collector.LastSteps.execute"


@pytest.fixture(scope="module")
def three_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three repositories, each with one old object to delete. Tests have copies."""
    directory = tmp_path_factory.mktemp("three") / "store"
    now = datetime.now(UTC) - AGE
    settings = Settings(lease_ttl=timedelta(0))
    with Store.init(directory, settings=settings, clock=ManualClock(now)) as store:
        for name in NAMES:
            repository = store.create_repository(name)
            for day, data in enumerate((b"old", b"new")):
                repository.objects.put("main", "x", data)
                for number in range(4 * (1 - day)):
                    repository.objects.put("main", f"stays{number}", b"1")
                date = FIRST_DAY + timedelta(days=day)
                repository.commits.commit("main", "change", date=date)
            repository.retention.set({"default": {"keep_last": 1}})
    date_files(directory, now)
    return directory


@pytest.fixture
def three(ebbtide: Ebbtide, three_template: Path, tmp_path: Path) -> Ebbtide:
    copy_store(three_template, tmp_path / "store")
    return ebbtide


def states(document: Any) -> dict[str, str]:
    return {each["repository"]: each["state"] for each in document["repositories"]}


def check_old(ebbtide: Ebbtide, **there: bool) -> None:
    for name, is_there in there.items():
        ebbtide("fs cat", name, "main~1", "x", code=0 if is_there else 1)


def test_all_are_swept_with_one_engine(three: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DuckEngine] = []
    begin = DuckEngine.__init__

    def counted(engine: DuckEngine, **_more: int) -> None:
        made.append(engine)
        begin(engine)

    monkeypatch.setattr(DuckEngine, "__init__", counted)
    done = three.json(*SWEEP)
    assert len(made) == 1
    assert states(done) == dict.fromkeys(NAMES, "swept")
    for each in done["repositories"]:
        assert (each["candidate_count"], each["deleted_bytes"], each["error"]) == (1, 3, None)
        shown = three.json("gc show", each["repository"], each["run_id"])
        assert (shown["state"], shown["run_path"]) == ("swept", each["run_path"])
    sums = {"repository_count": 3, "candidate_count": 3, "candidate_bytes": 9}
    sums |= {"deleted_count": 3, "deleted_bytes": 9, "quarantined_count": 0}
    assert done["totals"] == sums | {"error_count": 0, "quarantined_bytes": 0}
    check_old(three, east=False, north=False, west=False)


def test_a_failure_does_not_stop_the_others(three: Ebbtide, tmp_path: Path) -> None:
    """The storage of one is another's: its error is in the summary, and the code is its own."""
    (tmp_path / "store" / "storage" / "north" / "_ebbtide" / "OWNER").unlink()
    found = three(*SWEEP, "--json", code=3)
    assert states(found.document) == {"east": "swept", "north": "refused", "west": "swept"}
    error = found.document["repositories"][1]["error"]
    assert error["kind"] == "storage_foreign"
    assert f"error: north: {error['message']}" in found.err
    assert found.document["totals"]["error_count"] == 1
    shown = three("gc plan --all", *SHORT, code=3)
    assert re.search(r"^north +\w+ +refused .* storage_foreign$", shown.out, re.MULTILINE)
    assert re.search(r"^\(all\) ", shown.out, re.MULTILINE)
    check_old(three, east=False, north=True, west=False)


@pytest.mark.parametrize(
    ("place", "error", "state", "code", "agreed"),
    [
        ("quarantine.read_each", Failed("storage_error", "no network"), "swept", 0, True),
        (LAST, Refused("lease_lost", "no network"), "incomplete", 4, False),
        (LAST, ZeroDivisionError("no network"), "swept", 1, True),
    ],
)
def test_an_error_after_a_sweep_hides_nothing(
    three: Ebbtide,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    error: Exception,
    state: str,
    code: int,
    agreed: bool,
) -> None:
    """The run, its figures and the error stand beside each other, and the totals count it."""

    def fails(*_given: object, **_named: object) -> None:
        raise error

    def swept(collector: Collector, run_id: str) -> RunReport:
        with monkeypatch.context() as patched:
            if collector.show(run_id).repository == "east":
                patched.setattr(f"ebbtide.gc.{place}", fails)
                patched.setattr("ebbtide.gc.quarantine.held_back", lambda *_given, **_named: [])
            return sweep(collector, run_id)

    sweep = Collector.sweep
    monkeypatch.setattr(Collector, "sweep", swept)
    monkeypatch.setattr("ebbtide.cli.all_repositories.confirm", lambda *_given, **_named: True)
    monkeypatch.setattr("ebbtide.cli.gc.require_answerable", lambda **_named: None)
    yes = ("--yes",) if agreed else ()
    found = three(*RUN, *yes, "--quarantine", "none", "--json", code=code)
    east = found.document["repositories"][0]
    assert (east["state"], east["deleted_count"]) == (state, 1)
    shown = three.json("gc show east", east["run_id"])
    assert (shown["state"], shown["deleted_count"]) == (state, 1)
    assert "no network" in east["error"]["message"]
    assert "error: east: " in found.err
    assert found.document["totals"]["deleted_count"] == 3
    assert found.document["totals"]["error_count"] == 1
    check_old(three, east=False, north=False, west=False)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Failed("storage_error", "no network"), "storage_error", 1),
        (ZeroDivisionError("by zero"), "internal", 1),
    ],
)
def test_an_error_without_a_report(
    three: Ebbtide, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, code: int
) -> None:
    plan = Collector.plan

    def fails(collector: Collector) -> RunReport:
        report = plan(collector)
        if report.repository == "east":
            raise error
        return report

    monkeypatch.setattr(Collector, "plan", fails)
    found = three.json(*RUN, "--yes", code=code)
    assert states(found) == {"east": "failed", "north": "swept", "west": "swept"}
    failed = found["repositories"][0]
    assert (failed["run_id"], failed["error"]["kind"]) == (None, kind)
    assert found["totals"]["quarantined_count"] == 2


def test_one_question_for_all(three: Ebbtide, typing: Callable[[str], None]) -> None:
    """After all plans, with their sums. No leaves the plans, and `gc sweep` can carry one out."""
    typing("n\n")
    refused = three(*RUN)
    question = "quarantine 3 files (9 B) of 3 repositories, and close their expired commits?"
    assert refused.err.count(question) == 1
    assert "nothing was deleted; the plans stay" in refused.err
    assert three.json("gc sweep north", *SHORT, "--yes")["state"] == "swept"
    check_old(three, east=True, north=False, west=True)
    typing("y\n")
    done = three(*RUN, "--json")
    assert states(done.document) == dict.fromkeys(NAMES, "swept")
    assert [each["candidate_count"] for each in done.document["repositories"]] == [1, 0, 1]
    check_old(three, east=False, north=False, west=False)


def test_those_in_the_trash_stay_and_those_that_are_gone_go(
    three: Ebbtide, tmp_path: Path, typing: Callable[[str], None]
) -> None:
    """As `gc run` treats them by their id. A new repository can have the name of a gone one."""
    three("repo delete east")
    done = three.json(*RUN, "--yes")
    assert states(done) == {"north": "swept", "west": "swept"}
    metadata, storage = tmp_path / "store" / "metadata.db", tmp_path / "store" / "storage"
    with closing(sqlite3.connect(metadata)) as connection, connection:
        connection.execute("UPDATE repositories SET expires_at = ? WHERE name = 'east'", (1,))
    url = (tmp_path / "other").as_uri()
    three("repo create east --storage-url", url)
    typing("y\n")
    asked = three(*RUN, "--json")
    assert re.search(r"^delete .* of 1 repository without undo, because it is gone\?", asked.err)
    again = asked.document["repositories"]
    assert [(each["repository"], each["state"]) for each in again] == [
        (name, "swept") for name in ("east", "north", "west", "east")
    ]
    assert again[0]["repository_id"] != again[3]["repository_id"]
    assert three.json("repo list --gone")["repositories"] == []
    assert not [path for path in (storage / "east" / "data").rglob("*") if path.is_file()]
    assert three.json("repo show east")["storage_url"] == url


def test_no_repositories(lake: Ebbtide) -> None:
    lake("repo delete lake")
    found = lake.json(*RUN, "--yes", "--master", "spark://nowhere")
    assert (found["repositories"], found["totals"]["repository_count"]) == ([], 0)


def test_wrong_calls(lake: Ebbtide, tmp_path: Path) -> None:
    for words in (
        "run lake --all --yes",
        "run --yes",
        "plan",
        "run --all --yes --quiet-repository",
        "run --all --yes --inventory manifest.json",
        "run --all --yes --grace 20",
    ):
        assert "kind" in lake.json("gc", *words.split(), code=2)["error"], words
    assert not list((tmp_path / "store").rglob("plan.json"))


def stopping(monkeypatch: pytest.MonkeyPatch, *, step: str, times: int) -> None:
    """Makes Ctrl-C come when a step begins for that time."""
    observe, left = StepProgress.__call__, [times]

    def observed(shown: StepProgress, name: str, event: str) -> None:
        observe(shown, name, event)
        if (name, event) == (step, "start"):
            left[0] -= 1
            if not left[0]:
                raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(StepProgress, "__call__", observed)


def test_an_interrupt_within_a_repository(three: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stopping(patched, step="delete object", times=2)
        found = three(*SWEEP, code=130)
    assert found.out == ""
    assert "Interrupted in the sweep: " in found.err
    assert re.search(r"^Continue with: ebbtide gc sweep north \w+ ", found.err, re.MULTILINE)
    assert "This was about north. The others: 1 swept, 1 not begun." in found.err
    check_old(three, east=False, west=True)
    go_on(three, found.err)
    done = three.json(*SWEEP)
    assert [each["deleted_count"] for each in done["repositories"]] == [0, 0, 1]


def test_an_interrupt_between_two(three: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    say = Output.say

    def said(output: Output, text: str) -> None:
        if text.startswith("west: "):
            raise Interrupted(signal.SIGTERM)
        say(output, text)

    with monkeypatch.context() as patched:
        patched.setattr(Output, "say", said)
        found = three(*SWEEP, "--json", code=143)
    assert found.document["error"]["kind"] == "interrupted"
    assert "Interrupted between two repositories" in found.err
    assert "2 swept, 1 not begun." in found.err
    check_old(three, east=False, north=False, west=True)
    go_on(three, found.err, "Start it again with")
    check_old(three, west=False)


LAST_LINES = "# what the night is for\n\nwest\n{table}  # a table\nnorth\nwest\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A list with two repositories of the store and a table elsewhere."""
    table = tmp_path / "orders"
    for number in range(2):
        write_deltalake(str(table), pa.table({"id": [number]}), mode="overwrite")
    (tmp_path / "fleet.txt").write_text(LAST_LINES.format(table=f"delta:{table}"))
    return tmp_path / "fleet.txt"


def test_a_file_names_repositories_of_every_format(
    three: Ebbtide, file: Path, tmp_path: Path
) -> None:
    """In its order, each once. Its digests say what the document says."""
    digests = [tmp_path / "night.txt", tmp_path / "night.html"]
    asked = [text for each in digests for text in ("--digest", str(each))]
    done = three.json(*SWEEP, "--repositories", file, *asked)
    table = f"delta:{tmp_path}/orders"
    assert list(states(done)) == ["west", table, "north"]
    assert set(states(done).values()) == {"swept"}
    assert done["totals"]["repository_count"] == 3
    assert [each["repository_id"] is None for each in done["repositories"]] == [False, True, False]
    check_old(three, east=True, north=False, west=False)
    text, page = (each.read_text() for each in digests)
    assert re.search(r"^Ebbtide, .* UTC: 3 repositories, all done$", text, re.MULTILINE)
    assert re.search(r"^west +swept +1 file, 3 B +0 files +1 file, 3 B$", text, re.MULTILINE)
    assert re.search(r"^\(all\) +2 files, 6 B +0 files +2 files, 6 B$", text, re.MULTILINE)
    assert ">west</td>" in page
    assert page.count("<tr>") == 5


def test_the_store_is_one_line_of_a_file(three: Ebbtide, tmp_path: Path) -> None:
    (tmp_path / "fleet.txt").write_text("west\n*\n")
    found = three.json("gc plan --all", *SHORT, "--repositories", tmp_path / "fleet.txt")
    assert list(states(found)) == ["west", "east", "north"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("west\nsouth\nest\n", "2 repositories that the store does not have: 'south', 'est'"),
        ("# nothing\n", "names no repository"),
        ("\udcff", "is not UTF-8 text"),
    ],
)
def test_a_file_that_names_nothing_known(
    three: Ebbtide, tmp_path: Path, text: str, says: str
) -> None:
    """Before any work."""
    (tmp_path / "fleet.txt").write_text(text, errors="surrogateescape")
    found = three(*SWEEP, "--repositories", tmp_path / "fleet.txt", code=2)
    assert says in found.err
    check_old(three, east=True, north=True, west=True)


def test_options_of_all_need_it(three: Ebbtide, tmp_path: Path) -> None:
    for words in ("--parallel 2", "--digest night.txt", "--repositories fleet.txt"):
        found = three("gc run east --yes", *words.split(), code=2)
        assert "--repositories, --parallel and --digest are for --all" in found.err
    nowhere = tmp_path / "nowhere" / "night.txt"
    assert "cannot be written" in three(*SWEEP, "--digest", nowhere, code=2).err
    check_old(three, east=True, north=True, west=True)


def test_several_at_the_same_time(three: Ebbtide, tmp_path: Path) -> None:
    """By processes of their own. One that fails stops no other, and its error is in the digest."""
    (tmp_path / "store" / "storage" / "north" / "_ebbtide" / "OWNER").unlink()
    night = tmp_path / "night.txt"
    asked = ("--parallel", "3", "--digest", night, "--json")
    found = three(*SWEEP, *asked, code=3)
    assert states(found.document) == {"east": "swept", "north": "refused", "west": "swept"}
    refused = found.document["repositories"][1]["error"]
    assert refused["kind"] == "storage_foreign"
    assert found.document["totals"]["deleted_count"] == 2
    assert f"north: storage_foreign: {refused['message']}" in night.read_text()
    assert "1 not done" in night.read_text()
    check_old(three, east=False, north=True, west=False)


def test_several_wait_for_one_question(three: Ebbtide, typing: Callable[[str], None]) -> None:
    typing("y\n")
    asked = three(*RUN, "--parallel", "2", "--json")
    question = "quarantine 3 files (9 B) of 3 repositories, and close their expired commits?"
    assert asked.err.count(question) == 1
    assert states(asked.document) == dict.fromkeys(NAMES, "swept")
    assert asked.document["totals"]["quarantined_count"] == 3
    typing("")  # of nothing, nothing is asked
    again = three(*RUN, "--json")
    assert states(again.document) == dict.fromkeys(NAMES, "swept")
    assert again.err.count("?") == 0


def test_an_interrupt_reaches_those_at_work() -> None:
    """Each once; what has not begun does not begin, and the caller waits for the others."""
    begun: list[str] = []
    stopped = threading.Event()

    def work(name: str) -> str:
        begun.append(name)
        if name == "slow":
            assert stopped.wait(60)
        return name

    items = ["quick", "slow", *map(str, range(20))]
    results = at_once(items, 1, work, stopped.set)
    assert isinstance(results, Generator)
    assert next(results) == ("quick", "quick")
    with pytest.raises(Interrupted):
        results.throw(Interrupted(signal.SIGINT))
    assert begun == ["quick", "slow"]


def test_a_digest_escapes_what_it_shows() -> None:
    one: dict[str, Any] = {"repository": "<b>\x1b", "state": "refused", "warnings": ["<i>"]}
    one |= {"error": {"kind": "k", "message": "a\nb"}}
    figures = {f"{name}_{unit}": 0 for name in FIGURES for unit in ("count", "bytes")}
    totals = {"repository_count": 1, "error_count": 1}
    document = {"repositories": [one | figures], "totals": totals | figures}
    page, text = html_of(document, FIRST_DAY), text_of(document, FIRST_DAY)
    assert "&lt;b&gt;\\x1b" in page
    assert "<b>\x1b" not in page
    assert r"<b>\x1b: k: a\nb" in text
