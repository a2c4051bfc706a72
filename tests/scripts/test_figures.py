"""The documents show the figures of the files, and no others."""

import json
import re
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

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
    "benchmarks/README.md": ("with 25 million inodes and 34 GB free",),
}
"""Limits and computed times."""


def measured_outside(text: str, allowed: tuple[str, ...]) -> Iterator[str]:
    for line in figures.MARKED.sub("", text).splitlines():
        if NUMBER.search(line) and not any(each in line for each in allowed):
            yield line


def test_documents_and_results_agree() -> None:
    assert list(figures.faults(figures.declared())) == []
    for each in figures.aged(datetime.now(UTC)):
        warnings.warn(each, stacklevel=1)


@pytest.mark.parametrize("page", ["docs/performance.md", "benchmarks/README.md"])
def test_no_figure_stands_outside_a_table(page: str) -> None:
    text = (figures.ROOT / page).read_text()
    assert list(measured_outside(text, ALLOWED[page])) == []


def test_a_figure_outside_a_table_is_told() -> None:
    assert list(measured_outside("It took 12 s.", ())) == ["It took 12 s."]


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "PAGES_ALL", (str(tmp_path / "page.md"),))
    return tmp_path


def result(folder: Path, *, options: list[str], measured_at: str = "2026-11-28T00:00:00Z") -> None:
    content = {
        "measured_at": measured_at,
        "commit": "0123456789",
        "command": ["python", "-m", "benchmarks.join", *options],
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
    result(pages, options=["--ways", "none"])
    text = (pages / "page.md").read_text()
    assert "| none | 1.2 | 10 |  |" in text
    assert "2026-11-28, commit 01234567, 2 cores, 16 GiB, ext4, load 0.5" in text
    assert list(figures.faults(TABLES)) == []


def test_a_figure_that_differs_from_its_file_is_told(pages: Path) -> None:
    result(pages, options=[])
    (pages / "page.md").write_text((pages / "page.md").read_text().replace("1.2", "0.2"))
    assert [each for each in figures.faults(TABLES) if "differ" in each]


@pytest.mark.parametrize("options", [["--engine", "processes"], ["--ways", "processes"]])
def test_an_option_or_an_engine_that_is_gone_is_told(pages: Path, options: list[str]) -> None:
    result(pages, options=options)
    assert [each for each in figures.faults(TABLES) if "does not take these options" in each]


def test_a_result_that_is_much_older_than_the_collector_is_told(pages: Path) -> None:
    result(pages, options=[], measured_at="2025-01-01T00:00:00+00:00")
    assert [each for each in figures.aged(datetime.now(UTC)) if "join.json is" in each]


@pytest.mark.usefixtures("pages")
def test_a_missing_result_names_its_command() -> None:
    assert "python -m benchmarks.join --save join" in figures.drawn(TABLES["join"])
