"""The JVM that a server's runs share."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from ebbtide.errors import Failed
from ebbtide.gc.engines.spark.session import Launched
from ebbtide.server.jobs import Jobs, Order, _engine
from ebbtide.server.warm import WarmSpark, launch
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.support.server import eventually

SOON = timedelta(milliseconds=20)
LATE = timedelta(hours=1)
ON_SPARK = Settings(spark_master="local[1]")


class Fake:
    """A JVM that starts at once, or never does."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_alive = True

    def gateway(self) -> tuple[int, str]:
        if not self.port:
            raise Failed("spark_error", "it did not start")
        return self.port, "secret"

    def close(self) -> None:
        self.is_alive = False


@pytest.fixture
def fakes() -> list[Fake]:
    return []


@pytest.fixture
def warm(fakes: list[Fake]) -> Iterator[WarmSpark]:
    def start(_settings: Settings) -> Launched:
        fakes.append(Fake(len(fakes)))
        return cast("Launched", fakes[-1])

    made = WarmSpark(start)
    # Whoever asks first is told why it did not start, and the next one tries again.
    with pytest.raises(Failed, match="it did not start"):
        made.lend(ON_SPARK)
    fakes[0].is_alive = False
    yield made
    made.close()
    assert not any(each.is_alive for each in fakes)


def test_all_jobs_have_the_same(warm: WarmSpark, fakes: list[Fake]) -> None:
    """Until it died; and those without Spark, or with another's, have none."""
    for master in ("none", "sc://host:15002"):
        assert warm.lend(Settings(spark_master=master)) is None
    chosen = Settings(engine="duckdb", spark_master="sc://host:15002")
    order = Order(directory=None, settings=chosen, repository="lake", repository_id="1")
    assert (warm.lend(chosen), _engine(order).name) == (None, "duckdb")
    assert [warm.lend(ON_SPARK) for _ in range(3)] == [(1, "secret")] * 3
    warm.give_back(LATE)
    assert warm.lend(ON_SPARK) == (1, "secret")
    assert len(fakes) == 2
    fakes[1].is_alive = False
    assert warm.lend(ON_SPARK) == (2, "secret")


def test_it_ends_when_nobody_used_it_for_a_while(warm: WarmSpark, fakes: list[Fake]) -> None:
    """Not while somebody does."""
    warm.lend(ON_SPARK)
    warm.lend(ON_SPARK)
    warm.give_back(SOON)
    assert fakes[1].is_alive
    warm.give_back(SOON)
    eventually(lambda: not fakes[1].is_alive)
    assert warm.lend(ON_SPARK) == (2, "secret")
    warm.give_back(SOON)
    warm.lend(ON_SPARK)  # before its time is over
    assert fakes[2].is_alive


@pytest.mark.spark
@pytest.mark.drawn("whole programs")
def test_runs_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a process of its own, in one JVM; and in another, once that has died."""
    # That of other tests is none that a server would have.
    monkeypatch.setattr("ebbtide.gc.engines.spark.session._is_active", lambda: False)
    launched: list[Launched] = []

    def start(settings: Settings) -> Launched:
        launched.append(launch(settings))
        return launched[-1]

    settings = Settings(spark_master="local[1]", spark_driver_memory="1g", grace="0s")
    with Store.init(tmp_path / "store", settings=settings) as store:
        lake = store.create_repository("lake")
        lake.objects.put("main", "a", b"a")
        lake.commits.commit("main", "one")
        jobs = Jobs(lambda _count: None, WarmSpark(start))
        order = Order(
            directory=store.directory,
            settings=settings,
            repository="lake",
            repository_id=lake.info.repository_id,
            options={"unsafe": True, "mode": "clean"},
        )
        try:
            for number in (1, 1, 2):
                if number > len(launched) > 0:
                    process: Any = launched[-1]._jvm
                    process.process.kill()
                    process.process.wait()
                job = jobs.start(order)
                while not job.ended:  # or the time of the test is over
                    time.sleep(0.02)
                    job = jobs.of(job.repository_id)[0]
                assert job.report is not None, job.error
                assert job.report["state"] == "swept", job.report["error"]
                assert re.fullmatch(r"Spark \S+ on local\[1\]", job.report["engine"])
                assert len(launched) == number
        finally:
            jobs.close()
    assert not any(each.is_alive for each in launched)
