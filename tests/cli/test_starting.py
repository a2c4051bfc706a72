"""Ctrl-C and SIGTERM while the program is still being imported."""

from __future__ import annotations

import sys

import pytest

from tests.support.commands import captured

IMPORTING = """
import builtins, os, signal, sys
from ebbtide.program import main

# The background processes of a shell ignore it, and so would this one.
signal.signal(signal.SIGINT, signal.default_int_handler)
imported = builtins.__import__

def importing(name, *rest, **named):
    if name == "typer":
        os.kill(os.getpid(), signal.{signal})
    return imported(name, *rest, **named)

builtins.__import__ = importing
sys.argv = ["ebbtide", "repo", "list"]
main()
"""
"""A program that gets the signal when it begins to import a module."""


@pytest.mark.parametrize(
    ("signal", "code", "stream", "told"),
    [
        ("SIGINT", 130, "", "interrupted\n"),
        ("SIGTERM", 143, "", "interrupted\n"),
        ("SIGTERM", 143, "2>&-", ""),
        ("SIGTERM", 143, "2>/dev/full", ""),
    ],
)
def test_a_signal_during_the_import(signal: str, code: int, stream: str, told: str) -> None:
    """The exit code is the same where it cannot be told."""
    program = (sys.executable, "-c", IMPORTING.format(signal=signal))
    found = captured(["bash", "-c", f'"$@" {stream}', "bash", *program], timeout=60)
    assert (found.returncode, found.stdout, found.stderr) == (code, "", told)
