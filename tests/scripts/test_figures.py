"""The documents show the figures of the files, and no others."""

import json
import re
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import results
from scripts import figures

NUMBER = re.compile(
    r"\d (?:s|ms|µs|min|h|seconds|minutes|hours|MB|GB|MiB|GiB|files a second|times as)\b"
)
ALLOWED = {
    "docs/performance.md": (
        "| at 16 requests at a time, 0.15 s each | 16 min | 2.6 h |",
        "| at the limit of one prefix | 18 s | 3 min |",
        "| if each key counts as a write, for one prefix | 24 min | 4 h |",
    ),
    "README.md": (
        "seconds  kept          head of branch main",
        "all files                 258    1.4 MiB",
        "needed by commits         226    1.2 MiB",
    ),
    "docs/comparison.md": ("| by age |", "| Ebbtide on lakeFS |", "| lakeFS |"),
    "docs/lakefs.md": ("| a token for an upload | 24 h |",),
    "docs/dependencies.md": (),
    "benchmarks/README.md": (),
}
"""Limits, settings, computed times, and what the tour prints."""


def measured_outside(text: str, allowed: tuple[str, ...]) -> Iterator[str]:
    for line in figures.MARKED.sub("", text).splitlines():
        if NUMBER.search(line) and not any(each in line for each in allowed):
            yield line


@pytest.mark.filterwarnings("default::UserWarning")
def test_documents_and_results_agree() -> None:
    """A result that is old is only told in the summary of the tests."""
    assert list(figures.faults(figures.declared())) == []
    for each in figures.aged(datetime.now(UTC)):
        warnings.warn(each, stacklevel=1)


@pytest.mark.parametrize("page", ALLOWED)
def test_no_figure_stands_outside_a_table(page: str) -> None:
    text = (figures.ROOT / page).read_text()
    assert list(measured_outside(text, ALLOWED[page])) == []
    assert list(measured_outside("It took 12 s.", ())) == ["It took 12 s."]


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "PAGES", (str(tmp_path / "page.md"),))
    return tmp_path


def result(
    folder: Path,
    *,
    options: str = "",
    ran: str = "ebbtide gc run lake",
    measured_at: str = "2026-11-28T00:00:00Z",
) -> None:
    """Writes a result of the join, and a page that shows it."""
    content = {
        "measured_at": measured_at,
        "commit": "0123456789",
        "dirty": False,
        "command": ["python", "-m", "benchmarks.join", *options.split(), "--save", "join"],
        "ran": [ran.split()],
        "machine": {"cores": 2, "memory_bytes": 2**34, "disk": "ext4", "load": 0.5},
        "versions": {"python": "3.13.0"},
        "figures": {"listed": 10, "ways": {"none": {"seconds": 1.25}}},
    }
    (folder / "join.json").write_text(json.dumps(content))
    page = folder / "page.md"
    page.write_text(figures.filled("<!-- figures: join -->\n<!-- end -->\n", TABLES))


TABLES = {
    "join": {
        "each": "ways",
        "results": {"join": "benchmarks.join"},
        "columns": {"way": "{row}", "s": "{seconds:.1f}", "keys": "{listed}", "MiB": "{peak_mib}"},
    }
}


def test_a_table_shows_its_result_and_where_it_comes_from(pages: Path) -> None:
    """A figure that differs from its file is told, and so is a result that is old."""
    assert "python -m benchmarks.join --save join" in figures.drawn(TABLES["join"]), "none is there"
    result(pages)
    text = (pages / "page.md").read_text()
    assert "| none | 1.2 | 10 |  |" in text
    assert "2026-11-28, commit 01234567, 2 cores, 16 GiB, ext4, load 0.5" in text
    assert list(figures.faults(TABLES)) == []
    found = figures.read("join")
    assert found is not None
    assert "commit 01234567 with changes, " in figures.origin("join", found | {"dirty": True})
    (pages / "page.md").write_text(text.replace("1.2", "0.2"))
    assert [each for each in figures.faults(TABLES) if "differ" in each]
    result(pages, measured_at="2025-01-01T00:00:00+00:00")
    assert [each for each in figures.aged(datetime.now(UTC)) if "join.json is" in each]


@pytest.mark.parametrize("options", ["--engine processes", "--ways processes"])
def test_an_option_of_a_benchmark_that_is_gone_is_told(pages: Path, options: str) -> None:
    result(pages, options=options)
    tables = {"join": TABLES["join"] | {"results": {"join": f"benchmarks.join {options}"}}}
    assert [each for each in figures.faults(tables) if "does not take these options" in each]


def test_a_result_of_another_command_than_its_table_names_is_told(pages: Path) -> None:
    result(pages, options="--ways none")
    assert list(figures.faults(TABLES)) == ["join.json: its table names another command"]


@pytest.mark.parametrize(
    ("ran", "told"),
    [
        ("ebbtide gc sweep-all lake", "No such command"),
        ("ebbtide gc run lake --engine processes", "No such option"),
        ("EBBTIDE_SPARK_MASTER=processes ebbtide gc run lake", "no engine processes"),
        ("EBBTIDE_GC_ENGINE=none ebbtide gc run lake", "no setting EBBTIDE_GC_ENGINE"),
        ("EBBTIDE_SPARK_MASTER=local[2] EBBTIDE_LEASE_TTL=0s ebbtide --store DIR gc run lake", ""),
        ("EBBTIDE_SPARK_MASTER=URL ebbtide gc plan icechunk:DIR --json", ""),
        ("ebbtide serve --port 0", ""),
    ],
)
def test_a_command_an_engine_or_a_setting_that_is_gone_is_told(
    pages: Path, ran: str, told: str
) -> None:
    """Others are not."""
    result(pages, ran=ran)
    found = list(figures.faults(TABLES))
    assert (told and told in "".join(found)) or found == []


def test_what_a_virtual_machine_says_of_its_disk_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "rotational").write_text("1\n")
    assert results.kind_of_device(tmp_path, is_virtual=False) == "turning disk"
    assert results.kind_of_device(tmp_path, is_virtual=True) == "unknown kind of disk"
    assert results.kind_of_device(tmp_path / "a" / "b", is_virtual=False) == "unknown kind of disk"


def test_a_command_is_stored_without_places_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_RAN", [])
    environment = {"EBBTIDE_DATABASE_URL": "postgresql://user:word@host/x", "EBBTIDE_TOKEN": "x"}
    for _ in range(2):
        results.ran(["/bin/ebbtide", "gc", "plan", "icechunk:/data/lake"], environment)
    assert results._RAN == [["EBBTIDE_DATABASE_URL=URL", "ebbtide", "gc", "plan", "icechunk:DIR"]]


def test_keys_of_servers_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["x", "--peer-lakefs", "http://127.0.0.1:1", "--peer-lakefs-key", "A:B", "--ceph"]
    monkeypatch.setattr("sys.argv", given)
    assert results._options() == [
        "--peer-lakefs",
        "URL",
        "--peer-lakefs-key",
        "ID:SECRET",
        "--ceph",
    ]
