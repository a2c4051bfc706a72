"""What the documents promise a newcomer: the demo, and the tour in the README, really run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def environment() -> dict[str, str]:
    """This process's, with the program on the path and no settings of the caller's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EBBTIDE_")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}


def test_the_demo(tmp_path: Path) -> None:
    """It compares what it kept byte for byte, and fails where anything differs."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py", tmp_path / "demo"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "are byte for byte what was written" in done.stdout
    assert "has expired: collector run" in done.stdout


def test_the_tour_in_the_readme(tmp_path: Path) -> None:
    """Its commands as they stand, and of its output what does not depend on the day."""
    tour = (ROOT / "README.md").read_text().split("## A tour")[1].split("\n## ")[0]
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", tour, re.DOTALL))
    done = subprocess.run(
        ["bash", "-c", commands],
        cwd=ROOT,
        env=environment() | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert "2 commits kept, 2 let go" in done.stdout
    assert "was the head of branch main when its 30d window opened" in done.stdout
    assert re.search(r"^deleted +[1-9]", done.stdout, re.MULTILINE)
    assert "\n# Ebbtide\n" in done.stdout
    errors = done.stderr.splitlines()
    assert len(errors) == 1, done
    assert "has expired: collector run" in errors[0]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """To files that are there."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target
