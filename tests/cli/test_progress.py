"""How far work has come: as text, on a terminal, in plain lines, and not at all."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
from functools import partial
from pathlib import Path

import pytest

from ebbtide.cli import progress
from ebbtide.cli.progress import StepProgress, reading_text
from ebbtide.gc.steps import Meter, ProgressReading, advance
from ebbtide.text import time_text
from tests.cli.conftest import SHORT, Ebbtide
from tests.support.server import eventually


@pytest.mark.parametrize(
    ("reading", "ended", "text"),
    [
        (None, False, ""),
        (ProgressReading("files", 0, 9, False, 3.0), False, ""),
        (ProgressReading("files", 1_200, None, False, 0.5), False, "1,200 files"),
        (ProgressReading("files", 1_200, None, False, 4.0), False, "1,200 files, 300 a second"),
        (
            ProgressReading("files", 1_200, 5_000, True, 4.0),
            False,
            "1,200 of about 5,000 files, 300 a second, 0:13 left",
        ),
        (ProgressReading("nodes", 1_200, 1_000, True, 0.5), False, "1,200 nodes"),
        (ProgressReading("files", 1_200, 5_000, False, 4.0), True, "1,200 files, 300 a second"),
        (ProgressReading("tasks", 0, 9, False, 3.0, "waiting for ink"), False, "waiting for ink"),
        (ProgressReading("tasks", 9, 9, False, 0.5, "waiting for ink"), True, "9 tasks"),
    ],
)
def test_texts(reading: ProgressReading | None, ended: bool, text: str) -> None:
    assert reading_text(reading, ended=ended) == text


def test_times() -> None:
    assert [time_text(each) for each in (0, 65, 3_661)] == ["0:00", "1:05", "1:01:01"]


def test_steps_are_kept_with_what_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where nothing is shown: an interrupt tells of them. One within another has its own."""
    meter, shown = Meter(), StepProgress(quiet=True)
    shown.watch(meter)
    meter.begin("files")
    advance(3)
    shown("subtract", "start")
    shown("start", "start")
    shown("start", "end")
    assert shown.current is not None
    assert (shown.current.name, shown.current.reading) == ("subtract", None)
    meter.begin("files", 10)
    advance(4)
    shown("subtract", "end")
    assert shown.current is None
    subtract = shown.reached("sub")
    assert subtract is not None
    assert subtract.line == "finding files that are not needed: 4 files"
    assert shown.reached("delete ") is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("between_seconds", [3600.0, 0.001])
def test_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], between_seconds: float
) -> None:
    """At once, and then one in a while, of the step that is going on."""
    monkeypatch.setattr(progress, "LINE_SECONDS", between_seconds)
    repeats = between_seconds < 1
    meter, shown = Meter(), StepProgress(quiet=True, verbose=True)
    shown.watch(meter)
    lines: list[str] = []

    def has_said(line: str) -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return line in lines

    with shown:
        for step, text in (("check", "checking owner and clocks"), ("list", "listing the storage")):
            shown(step, "start")
            meter.begin("files", 9)
            for number in range(1, 10):
                advance(1)
                if repeats:
                    eventually(partial(has_said, f"{text}: {number} of 9 files"))
            shown(step, "end")
    has_said("")
    assert lines[0] == "checking owner and clocks"
    assert repeats or len(lines) == 1


def test_only_who_asks_gets_lines(lake: Ebbtide) -> None:
    """stdout is the answer's, with `--verbose` too."""
    lake("retention set lake --default 7d")
    assert lake("gc plan lake", *SHORT, "--json").err == ""
    assert lake("gc plan lake", *SHORT).err == ""
    for arguments in (("--verbose", "gc", "plan", "lake"), ("gc", "plan", "lake", "--verbose")):
        found = lake(*arguments, *SHORT, "--json")
        assert found.err.splitlines()[0] == "checking owner and clocks"
        assert found.document["state"] == "planned"


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks and times stay where they are; what is too long is cut."""
    driver, other = pty.openpty()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(other, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        meter, shown = Meter(), StepProgress(quiet=False)
        shown.watch(meter)
        with shown:
            shown("explain", "start")
            meter.begin("files of a very long name, as none has it in earnest")
            advance(7)
            shown("explain", "end")
        monkeypatch.undo()
    text = _read_to_the_end(driver).decode()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "").rstrip().splitlines()[-1]
    assert re.search(r"✓ finding what keeps it: 7 files of .*… 0:00:0\d$", last), text


def _read_to_the_end(driver: int) -> bytes:
    """All that was written to a terminal that is closed. The kernel hands it over in the
    background, so that one read may find a part of it."""
    read = b""
    with contextlib.suppress(OSError):  # EIO is the end on Linux
        while chunk := os.read(driver, 65536):
            read += chunk
    os.close(driver)
    return read


def test_summary(lake: Ebbtide, tmp_path: Path) -> None:
    """Plain text that says all on its own; its commands can be typed as they stand."""
    lake("retention set lake --default 7d")
    planned = lake("gc plan lake", *SHORT, "--run-dir", tmp_path / "my runs").out
    block = planned[planned.index("\nrun ") + 1 :]
    found = dict(re.split(r"  +", line, maxsplit=1) for line in block.splitlines())
    run_id = found["run"].split()[0]
    assert len(block.splitlines()) == len(found) == 6
    when = r"begun \d{4}-\d\d-\d\d \d\d:\d\d UTC, \d+\.\d s at work"
    assert re.fullmatch(rf"{run_id} planned, {when}, by ebbtide 0\.\S+", found["run"])
    assert found["would be deleted"] == "0 files, 0 B"
    shown = lake("gc show lake", run_id, "--run-dir", tmp_path / "my runs", "--json")
    policy = shown.document["policy_sha256"][:12]
    assert found["repository"] == f"lake, in {tmp_path}/store, policy sha256 {policy}"
    assert found["carry out"] == (
        f"ebbtide gc sweep lake {run_id} --grace 1s --unsafe --run-dir '{tmp_path}/my runs'"
    )
    lake("retention set lake --default 8d")
    other = lake.json("gc plan lake", *SHORT)["policy_sha256"]
    assert other != shown.document["policy_sha256"]


@pytest.mark.usefixtures("expired")
def test_verbose_with_a_log_of_json(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are lines of the log then, with the id of the run once it has one."""
    monkeypatch.setenv("EBBTIDE_LOG_FORMAT", "json")
    told = lake("gc plan lake", *SHORT, "--json", "--verbose")
    lines = [json.loads(line) for line in told.err.splitlines()]
    listing = [line for line in lines if line["message"] == "listing the storage"]
    assert [(line["level"], line["run_id"]) for line in listing] == [
        ("info", told.document["run_id"])
    ]
    assert any(line["message"].startswith("listing the storage: ") for line in lines)
    assert not lake("gc plan lake", *SHORT, "--json").err
