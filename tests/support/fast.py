"""The tests of `scripts/test --fast`: those nearest to what was changed, for a minute. They need
neither Java nor servers nor a browser.

Tests mirror the source. So the directories and imports of a test tell how near it is to a changed
file. Not for: what a commit must pass.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from random import Random
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
ROOT: Final = TESTS.parent
FILES_MAX: Final = 120
"""The most files of tests that are imported: more than there is time for."""
MARKERS: Final = ("spark", "browser")
SERVERS: Final = frozenset({"postgres", "s3_url", "azure_url"})
"""Fixtures that start a server."""
NO_SERVER: Final = "needs a server, which --fast does not start"
NO_TIME: Final = "no time is left for tests that are further from what was changed"
IS_ITS_TEST: Final = 40
"""How much nearer a test is with a changed module's name, its import, or its directory."""
IMPORTS_IT: Final = 20
IN_ITS_DIRECTORY: Final = 4


def needs_more(item: pytest.Item) -> bool:
    """Whether a test needs Java, a server or a browser, as far as its markers and fixtures say."""
    wanted = SERVERS.intersection(getattr(item, "fixturenames", ()))
    kind = getattr(getattr(item, "callspec", None), "params", {}).get("database_kind")
    return bool(wanted) or kind == "postgres" or any(map(item.get_closest_marker, MARKERS))


def changed_files(root: Path = ROOT) -> list[str]:
    """The files that differ from the last commit, else those that it changed."""
    for asked in (["HEAD"], ["HEAD~1", "HEAD"]):
        command = ["git", "-C", str(root), "diff", "--name-only", *asked]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        if told.returncode or told.stdout:
            return told.stdout.split() if told.returncode == 0 else []
    return []


def nearest_files(changed: Sequence[str], rng: Random) -> list[Path]:
    """The files of tests nearest to changed files. Chance orders the equally near."""
    files = sorted(TESTS.rglob("test_*.py"))
    rng.shuffle(files)
    near = {
        path: nearness_of(PurePosixPath(path.relative_to(ROOT)), imports_of(path), changed)
        for path in files
    }
    return sorted(files, key=lambda path: -near[path])[:FILES_MAX]


def nearness_of(test: PurePosixPath, imports: frozenset[str], changed: Sequence[str]) -> int:
    return max((_near(test, imports, PurePosixPath(each)) for each in changed), default=0)


def _near(test: PurePosixPath, imports: frozenset[str], changed: PurePosixPath) -> int:
    if changed == test:
        return 2 * IS_ITS_TEST
    if changed.parts[:2] != ("src", "ebbtide"):
        return 0
    inside = PurePosixPath(*changed.parts[2:])
    equal = 0
    for one, other in zip(test.parts[1:-1], inside.parts[:-1], strict=False):
        if one != other:
            break
        equal += 1
    near = IN_ITS_DIRECTORY * equal
    near += IMPORTS_IT * (".".join(["ebbtide", *inside.with_suffix("").parts]) in imports)
    return near + IS_ITS_TEST * (inside.stem in test.stem and equal == len(inside.parts) - 1)


def imports_of(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^from (ebbtide[.\w]*) import", path.read_text(), re.MULTILINE))


def no_server() -> None:
    pytest.skip(NO_SERVER)


class Fast:
    def __init__(self, seconds: float, seed: int) -> None:
        self._ends_at = time.monotonic() + seconds
        files = nearest_files(changed_files(), Random(seed))
        self._places = {path: number for number, path in enumerate(files)}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leaves out files before they are imported, which takes most of the time."""
        is_test = collection_path.match("test_*.py") and collection_path.is_file()
        return True if is_test and collection_path not in self._places else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        config.hook.pytest_deselected(items=[item for item in items if needs_more(item)])
        left = [item for item in items if not needs_more(item)]
        items[:] = sorted(left, key=lambda item: self._places.get(item.path, 0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._ends_at:
            pytest.skip(NO_TIME)

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> None:
        """Puts a skip in place of the start of a server. pytest carries it out, and so remembers it
        for the next test that asks for the same fixture."""
        if fixturedef.argname in SERVERS:
            vars(fixturedef)["func"] = no_server
