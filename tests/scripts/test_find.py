"""How the scripts choose a Python and a Java: what does not run, or is too old, is passed over."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.commands import captured

FIND = Path(__file__).parents[2] / "scripts" / "lib" / "find.sh"


def write_program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def write_java(home: Path, version: str) -> Path:
    lines = (f"    java.home = {home}", f"    java.specification.version = {version}")
    body = "\n".join(f"echo '{line}' >&2" for line in lines)
    return write_program(home / "bin" / "java", body)


def find(function: str, path: list[Path], **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs one of find.sh's functions with ``path`` before the system's own directories."""
    return captured(
        ["bash", "-c", f'set -euo pipefail; . "$1"; {function}', "find", str(FIND)],
        env={
            "PATH": os.pathsep.join([*map(str, path), "/usr/bin", "/bin"]),
            "PYENV_ROOT": "/nonexistent",
            **environment,
        },
    )


def real_python() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def test_python_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    for version in ("3.14", "3.13", "3.12", "3.11"):
        write_program(tmp_path / "shims" / f"python{version}", "exit 127")
    for version in ("3", f"3.{sys.version_info.minor}"):
        write_program(tmp_path / "real" / f"python{version}", f'exec "{real_python()}" "$@"')
    found = find("find_python", [tmp_path / "shims", tmp_path / "real"])
    assert Path(found.stdout.strip()).is_file()
    assert found.returncode == 0
    assert "shims" not in found.stdout


def test_python_named_by_the_user_is_used(tmp_path: Path) -> None:
    """It is never replaced. From an environment it is the one below."""
    chosen = write_program(tmp_path / "chosen", f'exec "{real_python()}" "$@"')
    assert find("find_python", [], EBBTIDE_PYTHON=str(chosen)).stdout.strip() == real_python()
    missing = find("find_python", [], EBBTIDE_PYTHON=str(tmp_path / "missing"))
    assert (missing.returncode, missing.stdout) == (1, "")
    found = find(f'python_at "{sys.executable}" any', [])
    assert found.stdout.strip() == real_python()


def test_java_that_is_old_or_does_not_run_is_passed_over(tmp_path: Path) -> None:
    write_java(tmp_path / "new", "17")
    for version in ("1.8", "16"):
        write_java(tmp_path / version, version)
    write_program(tmp_path / "broken" / "bin" / "java", "exit 1")
    for name in ("1.8", "16", "broken"):
        found = find("find_java", [tmp_path / "new" / "bin"], JAVA_HOME=str(tmp_path / name))
        assert found.stdout.strip() == str(tmp_path / "new"), name
    write_java(tmp_path / "mine", "21")
    found = find("find_java", [tmp_path / "new" / "bin"], JAVA_HOME=str(tmp_path / "mine"))
    assert found.stdout.strip() == str(tmp_path / "mine")
