"""Ends of runs for tests, and the figures that a file has of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ebbtide.gc.counts import Count
from ebbtide.gc.report import RunReport, RunState
from ebbtide.notify.ending import RunEnd, end_of_report

NOON = datetime(2030, 1, 2, 12, tzinfo=UTC)

Figures = dict[tuple[str, str, str], float]
"""By the metric's name, the repository, and the outcome or an empty text."""


def run_end(
    repository: str = "lake",
    state: RunState = "swept",
    *,
    ended_at: datetime = NOON,
    counts: Mapping[str, Count] | None = None,
) -> RunEnd:
    report = RunReport(
        run_id="run", repository=repository, state=state, run_path="/runs/run", counts=counts or {}
    )
    started_at = ended_at - timedelta(seconds=90)
    document: dict[str, Any] = report.to_json()
    return end_of_report(repository, "run", document, started_at=started_at, ended_at=ended_at)


def figures_of(path: Path) -> Figures:
    """Read by Prometheus's own parser. Every metric must be a gauge with a help text."""
    found = {}
    for family in text_string_to_metric_families(path.read_text()):
        assert (family.type, bool(family.documentation)) == ("gauge", True), family
        for sample in family.samples:
            labels = dict(sample.labels)
            key = (sample.name, labels.pop("repository"), labels.pop("outcome", ""))
            assert key not in found and not labels
            found[key] = sample.value
    return found
