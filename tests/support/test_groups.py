"""Tests that share what only one process of a run has are run by one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

TESTS: Final = """
import os, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_of_a_group(number):
    with open("processes", "a") as file:
        file.write(f"{os.getpid()} ")
"""


def test_a_group_has_one_process(tmp_path: Path) -> None:
    """pytest and pytest-xdist agree on how a group is named; some versions do not."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_group.py").write_text(TESTS)
    # Other plugins take longer to load than all the rest.
    options = ("-p", "xdist", "-n", "2", "--dist=loadgroup")
    subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    processes = (tmp_path / "processes").read_text().split()
    assert len(processes) == 8
    assert len(set(processes)) == 1
