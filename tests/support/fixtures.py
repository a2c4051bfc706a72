"""Repositories that real programs wrote, of versions that no test can write. Each test works on a
copy: the directory of these is only read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.support.requirements import require_or_skip

FIXTURES_VARIABLE: Final = "EBBTIDE_TEST_FIXTURES"
"""Names a directory with repositories, as `icechunk/NAME`."""


def fixture_names(kind: str, known: Iterable[str]) -> list[str]:
    """The names of the repositories of one kind: those that must be there, and any others."""
    directory = os.environ.get(FIXTURES_VARIABLE)
    found = (Path(directory) / kind).glob("*/") if directory else ()
    return sorted({*known, *(each.name for each in found)})


def copy_fixture(kind: str, name: str, to: Path) -> None:
    """Copies a repository; its files can be changed there. Skips the test where there is none."""
    directory = os.environ.get(FIXTURES_VARIABLE)
    if not directory:
        require_or_skip("fixtures", f"{FIXTURES_VARIABLE} names no directory with {kind}/{name}")
    source = Path(directory) / kind / name
    if not source.is_dir():
        require_or_skip("fixtures", f"{source} is not there")
    shutil.copytree(source, to, copy_function=shutil.copyfile)
    for each in (to, *to.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
