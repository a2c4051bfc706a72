"""How libraries are loaded, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import os
from ebbtide.imports import leave_algebra_alone
leave_algebra_alone()
import numpy
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize("chosen", [None, "2"])
def test_numpy_starts_no_threads(chosen: str | None) -> None:
    """Unless somebody asked for some."""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    if chosen is not None:
        environment["OPENBLAS_NUM_THREADS"] = chosen
    command = [sys.executable, "-c", LOADED]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    count, variable = found.stdout.split()
    assert (variable == chosen) if chosen else (count, variable) == ("1", "1")
