"""What is printed holds no control characters, whatever it names."""

from __future__ import annotations

import pytest

from ebbtide.cli.output import Output, print_error

NAME = "a\x1b[2J\r\x9b"


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
