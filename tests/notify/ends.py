"""Ends of runs for tests, and the figures that a file has of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ebbtide.gc.parts import Count
from ebbtide.gc.report import RunReport, RunState
from ebbtide.notify import RunEnd, RunStart

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
    start = RunStart(repository, "run", ended_at - timedelta(seconds=90))
    return replace(start.reported(report.to_json()), ended_at=ended_at)


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
