"""What the documents promise a newcomer: the demo, and the tour in the README, really run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ebbtide.settings import list_settings
from tests.support.claims import anchors
from tests.support.commands import captured
from tests.support.transcripts import unprinted

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def environment(**settings: str) -> dict[str, str]:
    """This process's, with the program on the path and no settings but these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EBBTIDE_")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"} | settings


@pytest.mark.drawn("whole programs")
def test_the_demo(tmp_path: Path) -> None:
    """It compares what it kept byte for byte, and fails where anything differs. Without Spark."""
    done = captured(
        [sys.executable, ROOT / "scripts" / "demo.py", tmp_path / "demo"],
        env=environment(EBBTIDE_SPARK_MASTER="none"),
        timeout=800,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "equal the written files byte for byte" in done.stdout
    assert "has expired: collector run" in done.stdout


def follow(text: str, tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return captured(
        ["bash", "-c", "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))],
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path), **settings),
        timeout=800,
    )


@pytest.mark.drawn("whole programs")
def test_the_tour_in_the_readme(tmp_path: Path) -> None:
    """On Spark, as it stands. Of its output what does not depend on the day."""
    tour = (ROOT / "README.md").read_text().split("## A tour")[1].split("\n## ")[0]
    done = follow(tour, tmp_path)
    assert "2 commits kept, 2 expire next" in done.stdout
    assert "was the head of branch main when its 30d window opened" in done.stdout
    assert re.search(r"^deleted +[1-9]", done.stdout, re.MULTILINE)
    assert "\n# Ebbtide\n" in done.stdout
    errors = done.stderr.splitlines()
    assert len(errors) == 1, done
    assert "has expired: collector run" in errors[0]
    assert unprinted(tour, done.stdout + done.stderr) == []


@pytest.mark.drawn("whole programs")
def test_start_here(tmp_path: Path) -> None:
    """All but the set-up, and what is done in a browser. Its grace, and the wait for that, is two
    seconds here, and its runs start no Spark."""
    start = (ROOT / "docs" / "start.md").read_text().replace("scripts/setup\n", "")
    for long, short in (("=15s", "=2s"), ("\nsleep 15\n", "\nsleep 2\n")):
        assert long in start
        start = start.replace(long, short)
    done = follow(start, tmp_path, EBBTIDE_SPARK_MASTER="none")
    assert done.returncode == 0, done
    assert done.stderr == ""
    assert "2 commits kept, 2 expire next" in done.stdout
    assert re.search(r"^would be deleted +1 +2.9 MiB$", done.stdout, re.MULTILINE)
    assert re.search(r"^deleted +1 +2.9 MiB$", done.stdout, re.MULTILINE)
    assert re.search(r"^run [0-9a-f]{32} deleted it:$", done.stdout, re.MULTILINE)
    assert "policy: keep_last 1; tags: keep" in done.stdout
    # A command that is left running, for the browser.
    assert unprinted(start, done.stdout) == ["ebbtide serve"]


COLLECTIONS = """
```sh
cd "$TMPDIR"
export EBBTIDE_STORE=$PWD/store
ebbtide init store
ebbtide repo create lake
mkdir plots reference
echo ACGT | tee reference/chr1.fa > reference/chr2.fa
head -c 300000 /dev/zero > plots/a.png
head -c 330000 /dev/zero > plots/b.png
ebbtide fs put -r lake main plots plots
ebbtide commit lake main -m Plots
ebbtide tag create lake v1 main
```
"""
"""What the page on collections begins with, which it does not show."""


@pytest.mark.drawn("whole programs")
def test_how_to_use_collections(tmp_path: Path) -> None:
    """Up to the purge, which asks."""
    page = (ROOT / "docs" / "collections.md").read_text()
    page = page.split("\n## Delete one now, for good\n")[0]
    done = follow(COLLECTIONS + page, tmp_path, EBBTIDE_SPARK_MASTER="none")
    assert done.returncode == 0, done
    assert unprinted(page, done.stdout + done.stderr) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, _, anchor in (
        link.partition("#")
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text())
    ):
        file = document.parent / target if target else document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_variables_are_there(document: Path) -> None:
    """Each that a document names is a setting, or one of the project's scripts or tests."""
    found = set(re.findall(r"\bEBBTIDE_[A-Z0-9_]*[A-Z0-9]\b", document.read_text()))
    assert found <= {setting.variable for setting in list_settings()} | other_variables()


@cache
def other_variables() -> set[str]:
    folders = (ROOT / each for each in ("benchmarks", "scripts", "tests"))
    programs = [each for folder in folders for each in folder.rglob("*") if each.suffix != ".md"]
    binary = (".pyc", ".zip")
    texts = [each.read_text() for each in programs if each.is_file() and each.suffix not in binary]
    return {name for text in texts for name in re.findall(r"\bEBBTIDE_(?:TEST_\w+|PYTHON)\b", text)}
