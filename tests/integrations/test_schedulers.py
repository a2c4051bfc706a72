"""Runs by schedulers. Tests of a scheduler whose package is missing are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.integrations.collecting import collect, figures
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store

OPTIONS = {"grace": "0s", "unsafe": True, "mode": "clean", "allow_share": True}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """A store whose only branch is gone from the commit with the file `a`."""
    settings = Settings(lease_ttl=timedelta(0))
    with Store.init(tmp_path / "store", settings=settings) as store:
        lake = store.create_repository("lake")
        lake.branches.create("old", "main")
        lake.objects.put("old", "a", b"a")
        lake.commits.commit("old", "one")
        lake.objects.put("old", "b", b"b")
    yield str(tmp_path / "store")


def test_collect(store: str) -> None:
    found = figures(collect("lake", store=store, dry_run=True, options=OPTIONS))
    assert (found["state"], found["deleted_count"]) == ("planned", 0)
    swept = figures(collect("lake", store=store, options=OPTIONS))
    assert swept["state"] == "swept"
    assert swept["deleted_count"] == swept["candidate_count"]
    assert swept.keys() > {"run_id", "candidate_bytes", "deleted_bytes", "expired_commits"}
    assert swept.keys() > {"unfinished_steps", "incidents"}
    with pytest.raises(InvalidInput):
        collect("lake", store=store, options={"grace": "soon"})


def test_a_loss_is_accepted_once_and_not_by_a_schedule(store: str) -> None:
    options = OPTIONS | {"accept_lost_commits": True}
    with pytest.raises(InvalidInput, match="gc plan lake --accept-lost-commits") as caught:
        collect("lake", store=store, options=options)
    assert caught.value.kind == "invalid_argument"


def test_airflow(store: str) -> None:
    pytest.importorskip("airflow", reason="Airflow is not installed")
    from ebbtide.integrations.airflow import EbbtideRunOperator

    operator = EbbtideRunOperator(
        task_id="collect", repository="lake", store=store, master="none", options=OPTIONS
    )
    found: dict[str, Any] = operator.execute({})
    assert found["state"] == "swept"


def test_dagster(store: str) -> None:
    dagster = pytest.importorskip("dagster", reason="Dagster is not installed")
    from ebbtide.integrations.dagster import run_asset, run_op

    made = run_op("collect", "lake", store=store, options=OPTIONS)
    assert made()["state"] == "swept"
    asset = run_asset("lake_collected", "lake", store=store, options=OPTIONS)
    result = dagster.materialize([asset])
    assert result.success
    metadata = result.asset_materializations_for_node("lake_collected")[0].metadata
    assert metadata["state"].value == "swept"
