"""Whether a process is gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ebbtide.processes import is_dead, this_process

SAY = "from ebbtide.processes import this_process; print(this_process(), flush=True); input()"


def test_a_process_is_dead_once_it_is_gone_and_not_before() -> None:
    """One that was killed and not yet asked for its exit code still has its number."""
    with subprocess.Popen(
        [sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        assert name != this_process()
        assert not is_dead(name)
        other.kill()
        # Its end of the pipe closes as it dies.
        assert other.stdout.read() == ""
        while not is_dead(name):
            assert other.returncode is None
    assert is_dead(name)


def test_names_of_processes() -> None:
    """One that had this one's number is dead. One of another machine is not known to be."""
    name = this_process()
    assert name is not None
    assert not is_dead(name)
    assert is_dead(f"{name}0")
    assert not is_dead(f"other-{name}0")
    machine = name.rsplit(" ", 2)[0]
    assert is_dead(f"{machine} 999999999 1")
    assert not is_dead(f"{machine} x 1")


@pytest.mark.parametrize(
    "holder", [None, "", "x", "another-machine pid:[1] 1 2", "a b c", "x -1 1"]
)
def test_unsure_is_not_dead(holder: str | None) -> None:
    assert not is_dead(holder)
