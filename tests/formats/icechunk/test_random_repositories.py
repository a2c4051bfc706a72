"""Random real repositories: Spark plans the same rows as the engine in the process."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.engines import ENGINES, INLINE
from tests.support.icechunk import SPEC_VERSIONS, build_random
from tests.support.icechunk_lake import IcechunkLake, planned_rows
from tests.support.randomized import randomized


@pytest.mark.parametrize("version", SPEC_VERSIONS)
@pytest.mark.spark
@pytest.mark.drawn("engines on Spark")
@pytest.mark.parametrize("engine", ["spark", "joins"])
@randomized("Icechunk repositories on Spark")
def test_spark_plans_the_same_rows(tmp_path: Path, version: int, engine: str, seed: int) -> None:
    build_random(tmp_path / "lake", seed, version)
    lake = IcechunkLake(tmp_path / "lake")
    lake.age()
    sizes, found = random.Random(seed).choice(("auto", "all")), []
    for lake.engine in (ENGINES[engine], INLINE):
        report = lake.planned(sizes=sizes)
        found.append(planned_rows(report))
    assert found[0] == found[1]
    # A plan of Spark can be swept.
    lake.engine = ENGINES[engine]
    swept = lake.collector().run()
    assert (swept.state, swept.counts["deleted"].objects) == ("swept", len(found[0]))
