"""What scripts/setup says when it cannot go on; and that it goes by the locks alone."""

import os
import re
from pathlib import Path

from tests.support.commands import captured

ROOT = Path(__file__).parents[2]


def test_one_line_says_that_the_named_python_does_not_do(tmp_path: Path) -> None:
    result = captured(
        [ROOT / "scripts" / "setup"],
        cwd=tmp_path,
        env={**os.environ, "EBBTIDE_PYTHON": str(tmp_path / "missing")},
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert re.fullmatch(r"setup: EBBTIDE_PYTHON=\S+ is no Python 3.11 to .*\n", result.stderr)


def test_every_locked_package_has_one_version_and_its_hashes() -> None:
    for name in ("requirements.lock", "scripts/lib/build.lock"):
        joined = (ROOT / name).read_text().replace("\\\n", " ")
        lines = [line for line in joined.splitlines() if line[:1].isalnum()]
        assert lines
        for line in lines:
            assert re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+ .*--hash=sha256:", line), line
