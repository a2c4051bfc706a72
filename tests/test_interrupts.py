"""Signals that ask a process to end."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal, time
from ebbtide import interrupts

class Object:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
        for _ in range(100):
            pass

class Other:
    def __del__(self):
        raise ValueError("told as ever")

interrupts.install()
interrupts.install()
try:
    Other()
    Object()
    print("went on")
    time.sleep(60)
except interrupts.Interrupted as heard:
    print("ended", heard.exit_code)
"""


def test_one_that_comes_while_an_object_is_cleared_away() -> None:
    """Python drops what is raised there. The process ends all the same, and says nothing of it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.splitlines() == ["went on", f"ended {128 + 15}"]
    assert done.stderr.count("ValueError: told as ever") == 1
    assert "Interrupted" not in done.stderr
