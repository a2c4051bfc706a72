"""A format that is made as CONTRIBUTING says is collected, verified and explained like the others.

`toy.py` shows how little a new format needs.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from ebbtide.audit.verify import verify
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.options import RunOptions
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from tests.formats import toy
from tests.formats.toy import LIST, ToyRepository
from tests.support.refusals import check_refused

FILES: Final = {"s1": ["data/a"], "s2": ["data/a", "data/b"], "s3": ["data/b", "data/c"]}
OLD: Final = 1_500_000_000
"""The date of all files, in seconds since 1970."""
LINES_MAX: Final = 120


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return make_lake(tmp_path / "lake")


def make_lake(root: Path) -> Path:
    """s2 is the head of `main`, and s3 of nothing; `data/d` is in no snapshot."""
    content = {f"data/{name}": name for name in "abcd"} | {"notes.txt": "somebody's"}
    content |= {f"snapshots/{name}.json": json.dumps(files) for name, files in FILES.items()}
    parents: dict[str, list[str]] = {"s1": [], "s2": ["s1"], "s3": ["s1"]}
    snapshots = {
        name: {"parents": those, "at": f"2017-01-0{name[1]}T00:00:00+00:00"}
        for name, those in parents.items()
    }
    content[LIST] = json.dumps({"refs": {"main": "s2"}, "snapshots": snapshots})
    for name, text in content.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, (OLD, OLD))
    return root


def collector(lake: Path) -> Collector:
    settings = Settings()
    return Collector(
        ToyRepository(open_storage(str(lake))),
        engine=DuckEngine(cores=1),
        options=RunOptions.of(settings, sessions=timedelta(days=1), allow_share=True),
    )


def left(lake: Path) -> set[str]:
    found = {str(each.relative_to(lake)) for each in lake.rglob("*") if each.is_file()}
    return {each for each in found if not each.startswith("_ebbtide/")}


def test_a_run_deletes_what_no_ref_reaches(lake: Path) -> None:
    before = left(lake)
    planned = collector(lake).plan()
    assert left(lake) == before
    assert verify(collector(lake), planned.run_id).difference_count == 0
    assert collector(lake).sweep(planned.run_id).state == "swept"
    assert before - left(lake) == {"data/c", "data/d", "snapshots/s3.json"}
    assert set(json.loads((lake / LIST).read_text())["snapshots"]) == {"s1", "s2"}
    assert collector(lake).run().state == "swept"
    assert before - left(lake) == {"data/c", "data/d", "snapshots/s3.json"}


def test_a_snapshot_that_got_a_branch_since_the_plan_stays(lake: Path) -> None:
    planned = collector(lake).plan()
    listed = json.loads((lake / LIST).read_text())
    listed["refs"]["dev"] = "s3"
    (lake / LIST).write_text(json.dumps(listed))
    assert collector(lake).sweep(planned.run_id).state == "swept"
    assert {"data/c", "snapshots/s3.json"} <= left(lake)
    assert "data/d" not in left(lake)


def test_a_snapshot_that_cannot_be_read_refuses_the_run(lake: Path) -> None:
    (lake / "snapshots/s1.json").write_text("{")
    before = left(lake)
    check_refused(collector(lake).run(), "corrupt_node")
    assert left(lake) == before


def test_it_is_little_code() -> None:
    """CONTRIBUTING says so."""
    assert len(Path(toy.__file__).read_text().splitlines()) <= LINES_MAX
