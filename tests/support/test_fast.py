"""Which tests a fast run takes, and in which order."""

import subprocess
from pathlib import Path, PurePosixPath
from random import Random

import pytest
from _pytest.outcomes import Skipped

from tests.support.fast import FILES_MAX, ROOT, Fast, changed_files, nearest_files, nearness_of

NONE: frozenset[str] = frozenset()


def near(test: str, *changed: str, imports: frozenset[str] = NONE) -> int:
    return nearness_of(PurePosixPath(test), imports, changed)


def test_nearer_and_nearer() -> None:
    changed = "src/ebbtide/formats/iceberg/avro.py"
    found = [
        near("tests/store/test_copies.py", changed),
        near("tests/formats/test_toy.py", changed),
        near("tests/formats/iceberg/test_real_tables.py", changed),
        near(
            "tests/store/test_copies.py",
            changed,
            imports=frozenset({"ebbtide.formats.iceberg.avro"}),
        ),
        near("tests/formats/iceberg/test_avro.py", changed),
        near("tests/gc/test_locks.py", changed, "tests/gc/test_locks.py"),
    ]
    assert found == sorted(set(found))
    assert found[0] == near("tests/gc/test_locks.py", "docs/gc.md") == 0


def test_files_are_chosen_by_chance_if_nothing_is_near() -> None:
    changed = ["src/ebbtide/durations.py"]
    one, other = (nearest_files(changed, Random(seed)) for seed in (1, 2))
    assert one[0] == other[0] == ROOT / "tests/test_durations.py"
    assert len(one) == len(other) == FILES_MAX
    assert set(one) != set(other)


def test_what_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True)

    assert changed_files(tmp_path) == []
    git("init", "-q")
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        git("add", ".")
        git("commit", "-q", "-m", name)
    assert changed_files(tmp_path) == ["b"]
    (tmp_path / "a").write_text("c")
    assert changed_files(tmp_path) == ["a"]


def test_what_is_left_out() -> None:
    fast = Fast(3600.0, 0)
    fast.pytest_runtest_setup()
    with pytest.raises(Skipped):
        Fast(-1.0, 0).pytest_runtest_setup()
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    assert sum(fast.pytest_ignore_collect(path) is None for path in tests) == FILES_MAX
    assert fast.pytest_ignore_collect(ROOT / "tests/conftest.py") is None


def test_no_server_is_started(request: pytest.FixtureRequest) -> None:
    """pytest carries out a skip in place of the fixture, also for a second test."""
    definition = request._get_active_fixturedef("s3_url")
    started = definition.func
    try:
        Fast(3600.0, 0).pytest_fixture_setup(definition)
        with pytest.raises(Skipped):
            definition.func()
    finally:
        vars(definition)["func"] = started
