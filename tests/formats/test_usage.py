"""What holds the bytes of repositories of all formats, against the definition."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from ebbtide.errors import Refused
from ebbtide.gc.engines.base import Engine
from tests.formats.delta.logs import random_table
from tests.formats.delta.stand import NOW, DeltaLake, random_keeping
from tests.formats.iceberg.histories import History as IcebergHistory
from tests.formats.iceberg.histories import ids_of
from tests.formats.iceberg.warehouse import Warehouse
from tests.formats.lakefs.world import on_disk, open_lakefs_world
from tests.formats.lakefs.world import play as play_lakefs
from tests.support.engines import INLINE, on_engines
from tests.support.holding import check_curve, check_usage, definition
from tests.support.icechunk import SPEC_VERSIONS, build_random
from tests.support.icechunk_lake import GRACE, IcechunkLake
from tests.support.randomized import randomized

HOUR = timedelta(hours=1)


def check_icechunk(engine: Engine, path: Path, seed: int) -> None:
    build_random(path, seed, Random(seed).choice(SPEC_VERSIONS))
    lake = IcechunkLake(path)
    lake.age()
    lake.engine = engine
    check_usage(lake.collector().usage(), definition(lake.format(), GRACE))


def check_delta(engine: Engine, path: Path, seed: int) -> None:
    rng = Random(seed)
    keeping = random_keeping(rng)
    table = random_table(path, rng, now=NOW)
    lake = DeltaLake(table.root, keeping)
    lake.engine = engine
    collector = lake.collector()
    if collector.plan().state == "refused":
        with pytest.raises(Refused):
            collector.usage()
        return
    grace = timedelta(days=keeping.grace)
    check_usage(collector.usage(), definition(lake.open(), grace))
    check_curve(collector.curve(), lake.open(), grace)


def check_iceberg(engine: Engine, path: Path, seed: int) -> None:
    path.mkdir()
    with closing(Warehouse(path)) as lake, ids_of(seed):
        history = IcebergHistory(Random(seed), lake)
        for _ in range(history.rng.randrange(4, 16)):
            history.act()
        lake.engine = engine
        collector = lake.collector()
        if collector.plan().state == "refused":
            with pytest.raises(Refused):
                collector.usage()
            return
        check_usage(collector.usage(), definition(lake.open(), HOUR))


def check_lakefs(engine: Engine, path: Path, seed: int) -> None:
    with open_lakefs_world() as world:
        play_lakefs(world, Random(seed))
        repository = world.repository() if engine is INLINE else on_disk(world, path)
        collector = world.collector(repository, engine=engine)
        grace = timedelta(hours=25)
        check_usage(collector.usage(), definition(repository, grace))
        check_curve(collector.curve(), repository, grace)


CHECKS = {
    "icechunk": check_icechunk,
    "delta": check_delta,
    "iceberg": check_iceberg,
    "lakefs": check_lakefs,
}


@pytest.mark.parametrize("name", CHECKS)
@randomized("usage of other formats")
def test_figures_are_those_of_the_definition(name: str, seed: int, tmp_path: Path) -> None:
    CHECKS[name](INLINE, tmp_path / "lake", seed)


@on_engines("spark", "joins")
@pytest.mark.parametrize("name", CHECKS)
@randomized("usage of other formats on Spark")
def test_so_they_are_on_spark(engine: Engine, name: str, seed: int, tmp_path: Path) -> None:
    CHECKS[name](engine, tmp_path / "lake", seed)
