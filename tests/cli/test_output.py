"""What is printed holds no control characters, whatever it names."""

from __future__ import annotations

import re

import pytest

from ebbtide.cli.output import Output, print_error
from tests.cli.conftest import Terminal

NAME = "a\x1b[2J\r\x9b"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def test_no_control_character_reaches_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=False)
    output.line(f"a line\nand {NAME}")
    output.line(NAME, style="bold")
    output.fields([("name", NAME)])
    output.table(["name"], [[NAME]])
    output.say(NAME)
    output.warn(NAME)
    output.error(NAME)
    output.interrupted(f"{NAME}\n{NAME}")
    print_error("internal", NAME, as_json=False, hint=NAME)
    printed = "".join(capsys.readouterr())
    assert printed.count("\\x1b[2J\\r\\x9b") == 11
    assert not {"\x1b", "\r", "\x9b"} & set(printed)
    assert "a line\nand" in printed


def test_what_is_drawn_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of a markup are names as any other; what is too wide goes on in the next line; figures
    are at the right."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    output = Output(as_json=False)
    rows = [("[red]x[/red]", "7"), (NAME, "12"), ("w" * 60, "345")]
    output.table(["name", "files"], rows, right=["files"])
    output.line("told [bold]so[/bold]", style="bold")
    drawn = COLOURS.sub("", terminal.getvalue())
    assert "[red]x[/red]" in drawn
    assert "a\\x1b[2J\\r\\x9b" in drawn
    assert "told [bold]so[/bold]" in drawn
    assert drawn.count("w") == 60
    assert max(map(len, drawn.splitlines())) <= 40
    figures = [line.rstrip() for line in drawn.splitlines() if re.search(r" \d+ *$", line)]
    assert [line.split()[-1] for line in figures] == ["7", "12", "345"]
    assert len({len(line) for line in figures}) == 1
