"""Each benchmark runs on today's code at its smallest scale, and its own check of the result can
fail.
"""

import importlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bottom_line, join, prepare_uncommitted, select_commits
from ebbtide.model import Ref
from tests.support.loops import without_loop

SMALLEST = {
    "arvados": ("--collections", "20", "--blocks", "2"),
    "bottom_line": ("--scale", "0.002", "--runs", "cold", "incremental"),
    "icechunk": ("--commits", "6", "--chunks", "5", "--array-chunks", "20", "--keep", "2"),
    "join": (
        *("--listed", "0.001", "--kept", "0.001", "--left", "0.0002", "--partitions", "2"),
        *("--ways", "none", "duckdb"),
    ),
    "many_collections": ("--collections", "20"),
    "prepare_uncommitted": ("--objects", "200", "--branches", "5"),
    "select_commits": ("--commits", "200", "--branches", "5", "--shape", "bushy"),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_scale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_SPARK_MASTER", "none")
    benchmark = importlib.import_module(f"benchmarks.{name}")
    without_loop(lambda: benchmark.main([*SMALLEST[name]]))


@pytest.mark.parametrize(
    ("changed", "told"), [(set(), "0 too many, 1 too few"), ({"a", "b"}, "1 too many, 0 too few")]
)
def test_bottom_line_tells_a_file_too_many_or_too_few(
    changed: set[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bottom_line, "show", lambda *_arguments: None)
    history: Any = type("Named", (), {"address": staticmethod(lambda number: "ab"[number])})()
    with pytest.raises(SystemExit, match=told):
        bottom_line.check(bottom_line.Figures("cold", {}, 0), changed, history, {0})


def test_select_commits_tells_a_head_that_is_not_kept() -> None:
    with pytest.raises(SystemExit, match="main"):
        select_commits.check([Ref("main", "branch", "a")], {"b"})


def test_join_tells_another_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_arguments: object) -> dict[str, float]:
        return {"left": 199.0, "seconds": 0.0}

    monkeypatch.setattr(join, "measure", measured)
    with pytest.raises(SystemExit, match="another number of rows"):
        join.main([*SMALLEST["join"]])


def test_prepare_uncommitted_tells_another_number_of_addresses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = {"prepare": {"seconds": 1.0, "rows": [2], "sizes": [1]}, "bare": [1.0, 3]}
    monkeypatch.setattr(
        prepare_uncommitted, "in_fresh_process", lambda what, *_arguments: answers[what]
    )
    with pytest.raises(SystemExit, match="2 addresses, not 3"):
        prepare_uncommitted.report(tmp_path, None, tmp_path)
