"""The commands know a format that another distribution brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.formats import schemes
from ebbtide.plugins import plugins_of
from tests.cli.conftest import Ebbtide
from tests.formats import toy
from tests.formats.test_toy import make_lake


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The format as another distribution than Ebbtide's."""
    folder = tmp_path / "site" / "toy-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{schemes.GROUP}]\ntoy = {toy.__name__}:ToyScheme\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    plugins_of.cache_clear()
    yield
    plugins_of.cache_clear()


@pytest.mark.usefixtures("distribution")
def test_a_run(tmp_path: Path, ebbtide: Ebbtide) -> None:
    name = f"toy:{make_lake(tmp_path / 'lake')}"
    found = ebbtide.json("gc run", name, "--yes", "--quarantine", "none", "--allow-share")
    assert (found["state"], found["deleted_count"]) == ("swept", 3)
    ebbtide.refuses("invalid_argument", "retention show", name, code=2)
    ebbtide.refuses("invalid_argument", "expire", name, "--older-than", "1d", "--yes", code=2)
