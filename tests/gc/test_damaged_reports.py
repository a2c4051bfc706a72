"""A report that is not as it was written stops its own run alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.errors import Refused
from tests.support.world import World


@pytest.fixture
def swept(world: World) -> Path:
    """The report of a run that swept; another run has planned since."""
    world.save("main", days_ago=50, put=["old"])
    world.save("main", days_ago=40, delete=["old"], put=["new"])
    world.save("main", days_ago=1, put=["newer"])
    world.keep(default="20d")
    report = world.collect()
    assert report.counts["deleted"].objects
    world.collector().plan()
    return Path(report.run_path) / "report.json"


def test_all_other_runs_go_on(world: World, swept: Path) -> None:
    written = json.loads(swept.read_text())
    without = {key: value for key, value in written.items() if key != "kinds"}
    run_id = swept.parent.name
    for damaged in (without, written | {"kinds": {"object": "many"}}, written | {"by_ref": 7}):
        swept.write_text(json.dumps(damaged))
        with pytest.raises(Refused, match="delete that file and sweep the run again") as caught:
            world.collector().show(run_id)
        assert caught.value.kind == "report_corrupt"
        states = {report.run_id: report.state for report in world.collector().runs()}
        assert states.pop(run_id) == "refused"
        assert {*states.values()} == {"planned"}
        assert world.collector(mode="auto").plan().state == "planned"
    world.swept()


def test_a_sweep_tells_anew_what_it_did(world: World, swept: Path) -> None:
    before = json.loads(swept.read_text())
    swept.unlink()
    report = world.collector().sweep(swept.parent.name)
    assert report.state == "swept"
    assert report.counts["deleted"].objects == before["deleted_count"]
    assert json.loads(swept.read_text())["deleted_count"] == before["deleted_count"]
