"""Faults can be made as they are written, and what scripts/bite says of the tests that follow."""

from pathlib import Path

import pytest

from scripts.bite import main, read_faults

ROOT = Path(__file__).parents[2]
FAULTS = read_faults()

CODE = """
def double(number: int) -> int:
    return 2 * number
"""
TEST = """
from ebbtide import double

def test_double() -> None:
    assert double(3) == 6
"""
OPTIONS = """
def pytest_addoption(parser):
    parser.addoption("--drawn", action="store_true")
    parser.addoption("--fast", type=float)
"""
# Plugins that these tests do not need take five times as long to start as all the rest.
SETTINGS = """
[tool.pytest.ini_options]
markers = ["spark: none of them"]
addopts = "-ra -p no:hypothesispytest -p no:schemathesis -p no:zarr -p no:anyio"
"""
FAULT = """
[{name}]
harm = "Numbers are wrong."
file = "src/ebbtide/__init__.py"
old = "{old}"
new = "{new}"
tests = ["tests"]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "src" / "ebbtide").mkdir(parents=True)
    (tmp_path / "src" / "ebbtide" / "__init__.py").write_text(CODE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_double.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text(OPTIONS)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    return tmp_path


def write_faults(checkout: Path, **changes: tuple[str, str]) -> Path:
    path = checkout / "faults.toml"
    tables = (FAULT.format(name=name, old=old, new=new) for name, (old, new) in changes.items())
    path.write_text("".join(tables))
    return path


def test_every_fault_can_be_made() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    for fault in FAULTS:
        broken = fault.broken(ROOT)
        assert broken is not None, f"{fault.name}: its old text is not in {fault.file} once"
        assert broken != (ROOT / fault.file).read_text()
        compile(broken, fault.file, "exec")
        assert fault.harm.endswith(".")
        assert fault.tests
        for test in fault.tests:
            assert (ROOT / test).exists(), f"{fault.name}: there is no {test}"


def test_a_fault_is_found_by_a_test_that_fails(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_faults(checkout, wrong=("2 *", "3 *"))
    assert main(["--seed=7", "--jobs=1"], root=checkout, path=path) == 0
    said = capsys.readouterr().out
    assert "seed 1, by tests/test_double.py::test_double: assert 9 == 6\n" in said
    assert "1 found, 0 survived, 0 out of date, 0 not run\n" in said


def test_nothing_else_counts_as_found(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_faults(
        checkout,
        alike=("2 * number", "number * 2"),
        moved=("4 *", "3 *"),
        unreadable=("2 *", "2 *+ *"),
        crashing=("def double", "assert False\\ndef double"),
    )
    assert main(["--seeds=2", "--jobs=1"], root=checkout, path=path) == 1
    said = capsys.readouterr().out
    assert "0 found, 1 survived, 1 out of date, 2 not run\n" in said


def test_tests_that_fail_anyway_find_nothing(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_faults(checkout, wrong=("2 *", "3 *"))
    (checkout / "tests" / "test_double.py").write_text(TEST.replace("6", "5"))
    assert main(["--jobs=1"], root=checkout, path=path) == 1
    assert "the tests fail without a fault" in capsys.readouterr().out


def test_by_the_tests_of_a_fast_run(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are chosen by what is broken, not by what the fault names."""
    path = write_faults(checkout, wrong=("2 *", "3 *"), other=("2 *", "4 *"))
    path.write_text(path.read_text().replace('tests = ["tests"]', 'tests = ["no_such_test.py"]'))
    assert main(["--fast", "--part=1", "--jobs=1"], root=checkout, path=path) == 0
    said = capsys.readouterr().out
    assert "1 found" in said
    assert "first, without" not in said
