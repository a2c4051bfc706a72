"""Spans and gauges, received by the real SDK of OpenTelemetry."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ebbtide import logs, telemetry
from ebbtide.errors import Failed
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Count
from ebbtide.notify import FAMILIES, samples_of, tell
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.cli.test_docs import environment
from tests.notify.ends import run_end
from tests.support.app import serving
from tests.support.clock import ManualClock
from tests.support.commands import captured
from tests.support.engines import INLINE
from tests.support.server import eventually


@dataclass(frozen=True, slots=True)
class Received:
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        (found,) = [each for each in self.spans() if each.name == name]
        return found

    def gauges(self) -> dict[tuple[str, tuple[tuple[str, Any], ...]], float]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            (metric.name, tuple(sorted((point.attributes or {}).items()))): point.value
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        }


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """An SDK for one test. The providers of the process stay as they are."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    telemetry._gauge.cache_clear()
    monkeypatch.setattr(telemetry, "_tracer", partial(tracers.get_tracer, telemetry.NAME))
    monkeypatch.setattr(
        "opentelemetry.metrics.get_meter", lambda name, version: meters.get_meter(name, version)
    )
    token = context.attach(context.Context())
    yield Received(exporter, reader)
    context.detach(token)
    meters.shutdown()
    tracers.shutdown()
    telemetry._gauge.cache_clear()


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def lake_with_garbage(store: Store, clock: ManualClock) -> Repository:
    """Three files, two of which nothing needs."""
    lake = store.create_repository("lake")
    lake.objects.put("main", "kept", b"kept")
    lake.commits.commit("main", "kept")
    for name in ("a", "b"):
        lake.objects.put("main", name, b"no")
    lake.commits.reset("main")
    clock.advance(timedelta(days=3))
    return lake


def collector_of(store: Store, lake: Repository, share_max: float = 1.0) -> Collector:
    form = EmbeddedRepository(lake.context, store_id=store.store_id)
    return Collector(form, engine=INLINE, options=RunOptions.of(Settings(share_max=share_max)))


def test_a_run_and_its_steps(store: Store, clock: ManualClock, received: Received) -> None:
    """Steps are within the plan or the sweep that they belong to, which have the counts."""
    repository = lake_with_garbage(store, clock)
    report = collector_of(store, repository).run()
    assert report.state == "swept", report.error
    plan, sweep = received.span("gc plan"), received.span("gc sweep")
    for span in (plan, sweep):
        found = attributes_of(span)
        assert found["ebbtide.run_id"] == report.run_id
        assert found["ebbtide.repository"] == "lake"
        assert found["ebbtide.candidate_count"] == 2
        assert span.parent is not None
        assert span.parent.span_id == received.span("gc run").context.span_id
    assert attributes_of(plan)["ebbtide.state"] == "planned"
    assert attributes_of(sweep)["ebbtide.state"] == "swept"
    assert attributes_of(sweep)["ebbtide.deleted_count"] == report.counts["deleted"].objects == 2
    steps = {
        span.name: next(each.name for each in received.spans() if each.context == span.parent)
        for span in received.spans()
        if span.name not in ("gc plan", "gc sweep", "gc run")
    }
    assert {"check", "list", "subtract", "fence"} <= steps.keys()
    assert steps["list"] == "gc plan"
    assert steps["fence"] == "gc sweep"


def test_a_refusal_and_an_error(store: Store, clock: ManualClock, received: Received) -> None:
    """Their spans are marked with the kind; the text stays out."""
    repository = lake_with_garbage(store, clock)
    assert collector_of(store, repository, share_max=0.1).plan().state == "refused"
    with pytest.raises(Failed), telemetry.span("step"):
        raise Failed("storage_error", "secret-name.csv")
    for name, kind in (("gc plan", "over_share"), ("step", "storage_error")):
        span = received.span(name)
        assert span.status.status_code is StatusCode.ERROR
        assert attributes_of(span)["error.type"] == kind
        assert "secret-name" not in span.to_json()


def test_gauges_are_those_of_the_file(received: Received) -> None:
    end = run_end(counts={"listed": Count.of(100, None), "deleted": Count.of(4, 400)})
    assert tell(end, Settings()) == []
    assert tell(end, Settings()) == []
    wanted = {(each.name, each.labels): each.value for each in samples_of(end)}
    assert {name for name, _ in wanted} <= set(FAMILIES)
    found = {(name, labels): value for (name, labels), value in received.gauges().items()}
    assert found == {
        (name, tuple(sorted(labels))): value for (name, labels), value in wanted.items()
    }


def test_lines_of_the_log_have_the_ids(
    received: Received, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up("json", "info")
    try:
        with telemetry.span("step"):
            logging.getLogger("x").info("within")
        logging.getLogger("x").info("outside")
    finally:
        logs.take_down()
    within, outside = map(json.loads, capsys.readouterr().err.splitlines())
    span = received.span("step")
    assert within["trace_id"] == f"{span.context.trace_id:032x}"
    assert within["span_id"] == f"{span.context.span_id:016x}"
    assert "trace_id" not in outside


def test_without_the_api_nothing_is_made(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process in which nothing has loaded it."""
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    with telemetry.span("step", {"a": 1}) as traced:
        traced.note({"b": 2})
        traced.rename("other")
        traced.child("inner", began=0.0).end()
        traced.fail("internal")
    with telemetry.request_span("GET", {}):
        assert telemetry.trace_ids() == {}
    assert tell(run_end(), Settings()) == []
    assert "opentelemetry.trace" not in sys.modules
    assert received.spans() == []


def test_a_request_and_the_run_that_it_orders(tmp_path: Path, received: Received) -> None:
    """In one trace, which the client began. The run works in a process without an SDK."""
    settings = Settings(reclaim=False, schedules=False)
    with (
        Store.init(tmp_path / "store", settings=settings) as store,
        serving(store) as http,
    ):
        store.create_repository("lake").objects.put("main", "a", b"secret-content")
        trace, parent = f"{7:032x}", f"{9:016x}"
        headers = {"traceparent": f"00-{trace}-{parent}-01", "X-Request-Id": "order-1"}
        asked = http.post("/repositories/lake/gc/runs", json={"dry_run": True}, headers=headers)
        assert asked.status_code == 202, asked.text
        run_id = asked.json()["run_id"]
        eventually(lambda: any(each.name == "gc plan" for each in received.spans()))
        missing = http.get("/repositories/nothing/branches/secret-name")
        assert missing.status_code == 404
    order = received.span("POST /api/v1/repositories/{repository}/gc/runs")
    assert order.kind is SpanKind.SERVER
    assert order.parent is not None
    assert (order.context.trace_id, order.parent.span_id) == (7, 9)
    assert attributes_of(order) == {
        "http.request.method": "POST",
        "http.response.status_code": 202,
        "http.route": "/api/v1/repositories/{repository}/gc/runs",
        "ebbtide.repository": "lake",
        "ebbtide.request_id": "order-1",
    }
    run = received.span("gc plan")
    assert run.parent is not None
    assert run.parent.span_id == order.context.span_id
    assert attributes_of(run)["ebbtide.run_id"] == run_id
    assert attributes_of(run)["ebbtide.state"] == "planned"
    steps = [each for each in received.spans() if each.parent == run.context]
    assert {"list", "subtract"} <= {each.name for each in steps}
    assert "secret" not in "".join(each.to_json() for each in received.spans())


@pytest.mark.drawn("whole programs")
def test_the_command_that_sets_an_sdk_up(tmp_path: Path) -> None:
    """As docs/monitoring.md has it, with the exporter that prints."""
    with Store.init(tmp_path / "store", settings=Settings()) as store:
        store.create_repository("lake")
    programs = Path(sys.executable).parent
    exporters = {"traces": "console", "metrics": "none", "logs": "none"}
    options = [word for name, each in exporters.items() for word in (f"--{name}_exporter", each)]
    program = [str(programs / "opentelemetry-instrument"), *options, str(programs / "ebbtide")]
    variables = environment(EBBTIDE_STORE=str(tmp_path / "store"), EBBTIDE_SPARK_MASTER="none")
    done = captured([*program, "gc", "plan", "lake"], env=variables, timeout=300)
    assert done.returncode == 0, done
    for name in ("gc plan", "list", "subtract"):
        assert f'"name": "{name}"' in done.stdout
    assert '"ebbtide.state": "planned"' in done.stdout
