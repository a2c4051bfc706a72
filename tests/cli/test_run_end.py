"""What the commands of runs tell other programs at the end: `--metrics-file`, and the settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.errors import Failed
from ebbtide.gc.collector import Collector
from tests.cli.conftest import AT_ONCE, SHORT, Ebbtide
from tests.notify.ends import Figures, figures_of
from tests.notify.loopback import receiver


def outcomes(figures: Figures) -> dict[str, str]:
    return {key[1]: key[2] for key, value in figures.items() if key[2] and value}


@pytest.mark.usefixtures("expired")
def test_a_run_leaves_its_figures(lake: Ebbtide, tmp_path: Path) -> None:
    file = tmp_path / "ebbtide.prom"
    arguments = ("lake", *SHORT, "--metrics-file", file)
    planned = lake.json("gc plan", *arguments)
    assert outcomes(figures_of(file)) == {"lake": "planned"}
    lake("gc sweep lake", planned["run_id"], *AT_ONCE, "--metrics-file", file)
    figures = figures_of(file)
    assert outcomes(figures) == {"lake": "swept"}
    assert figures["ebbtide_run_deleted_bytes", "lake", ""] == 3
    success = figures["ebbtide_run_last_success_time_seconds", "lake", ""]

    lake("gc run lake --metrics-file", file, "--grace", "1s", "--yes", code=2)
    lake("gc run typo", *SHORT, "--metrics-file", file, "--yes", code=2)
    assert figures_of(file) == figures, "wrong input and unknown names are no runs"
    again = lake.json("gc run", *arguments, "--yes")
    figures = figures_of(file)
    assert figures["ebbtide_run_candidate_files", "lake", ""] == again["candidate_count"]
    assert figures["ebbtide_run_last_success_time_seconds", "lake", ""] > success


def test_an_error_ends_a_run(
    lake: Ebbtide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ebbtide.prom"
    monkeypatch.setenv("EBBTIDE_RUN_METRICS_FILE", str(file))

    def fail(_self: Collector) -> None:
        raise Failed("storage_error", "the storage is on fire")

    monkeypatch.setattr(Collector, "plan", fail)
    lake("gc run lake --yes", code=1)
    assert outcomes(figures_of(file)) == {"lake": "failed"}


@pytest.mark.usefixtures("expired")
def test_a_webhook_and_a_program(
    lake: Ebbtide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hook.json"
    monkeypatch.setenv("EBBTIDE_RUN_HOOK", f"tee {file}")
    with receiver() as found:
        monkeypatch.setenv("EBBTIDE_RUN_WEBHOOK", found.url)
        document = lake.json("gc run lake", *AT_ONCE)
    told = json.loads(file.read_text())
    assert json.loads(found.received[0].body) == told
    assert (told["action"], told["outcome"], told["report"]) == ("run", "swept", document)
    assert document["warnings"] == []


@pytest.mark.usefixtures("expired")
def test_a_failure_to_tell_changes_no_outcome(
    lake: Ebbtide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "none" / "ebbtide.prom"
    told = lake("gc plan lake --metrics-file", nowhere)
    assert "warning: the metrics of this run were not written" in told.err
    monkeypatch.setenv("EBBTIDE_RUN_HOOK", "false")
    with receiver([404]) as found:
        monkeypatch.setenv("EBBTIDE_RUN_WEBHOOK", found.url)
        document = lake.json("gc run lake", *AT_ONCE)
    assert (document["state"], document["deleted_count"]) == ("swept", 1)
    webhook, hook = document["warnings"]
    assert "status 404" in webhook
    assert "exit code 1" in hook
