"""The server's metrics, for Prometheus. Labels are names of routes, and of repositories that have a
schedule, never the values in a request."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide.store.reclaimer import Backlog, Reclaimed
from ebbtide.store.schedules import Schedule

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_REPOSITORY: Final = ("repository",)


class ScheduleFamilies(Collector):
    """The metrics of schedules, from the rows that were read last."""

    def __init__(self) -> None:
        self.shown: Sequence[Schedule] = ()

    def collect(self) -> Iterable[Metric]:
        """Yields the families, each with one series for every schedule that has a value."""
        last = GaugeMetricFamily(
            "ebbtide_schedule_last_run_timestamp_seconds",
            "When the last run of a schedule started, in seconds since 1970.",
            labels=_REPOSITORY,
        )
        following = GaugeMetricFamily(
            "ebbtide_schedule_next_run_timestamp_seconds",
            "When the next run of a schedule starts, in seconds since 1970.",
            labels=_REPOSITORY,
        )
        missed = CounterMetricFamily(
            "ebbtide_schedule_missed",
            "Due times without a run, because no server started one in time.",
            labels=_REPOSITORY,
        )
        skipped = CounterMetricFamily(
            "ebbtide_schedule_skipped",
            "Due times without a run, because another run was going on.",
            labels=_REPOSITORY,
        )
        for each in self.shown:
            name = [each.repository]
            if each.last_run is not None:
                last.add_metric(name, each.last_run.started_at.timestamp())
            if each.next_start_at is not None:
                following.add_metric(name, each.next_start_at.timestamp())
            missed.add_metric(name, each.missed_count)
            skipped.add_metric(name, each.skipped_count)
        return (last, following, missed, skipped)


class Metrics:
    """The metrics of one server.

    If a server has several processes, `shared` is the directory in which each keeps its values, and
    any of them returns the sums. The environment must have named it before this module was
    imported (`workers`).
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.registry = CollectorRegistry()
        self._shared = shared
        labels = ["method", "route", "status"]
        under_way = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")
        # Read from the database for each answer.
        read_anew = partial(Gauge, registry=self.registry, multiprocess_mode="mostrecent")
        self.requests = Counter(
            "ebbtide_requests", "Requests answered.", labels, registry=self.registry
        )
        self.seconds = Histogram(
            "ebbtide_request_seconds",
            "Time from a request's head to the end of its answer.",
            labels[:2],
            registry=self.registry,
        )
        self.received = Counter(
            "ebbtide_received_bytes", "Bytes of bodies received.", registry=self.registry
        )
        self.sent = Counter("ebbtide_sent_bytes", "Bytes of bodies sent.", registry=self.registry)
        self.under_way = under_way(
            "ebbtide_requests_under_way",
            "Requests being answered.",
        )
        self.jobs = under_way(
            "ebbtide_collector_runs_under_way",
            "Collector runs that this server started and that have not ended.",
        )
        self.reclaimed = Counter(
            "ebbtide_reclaimed_objects",
            "Deleted objects that were never committed.",
            registry=self.registry,
        )
        self.reclaimed_bytes = Counter(
            "ebbtide_reclaimed_bytes",
            "Bytes of deleted objects that were never committed, as far as known.",
            registry=self.registry,
        )
        self.reclaim_failures = Counter(
            "ebbtide_reclaim_failures",
            "Failed deletes of objects that were never committed. They are tried again.",
            registry=self.registry,
        )
        self.reclaim_backlog = read_anew(
            "ebbtide_reclaim_backlog_objects",
            "Uncommitted objects that lost their last reference and are not deleted yet.",
        )
        self.reclaim_age = read_anew(
            "ebbtide_reclaim_oldest_seconds",
            "Time since the oldest object of the backlog lost its last reference.",
        )
        self.reclaim_tokens = read_anew(
            "ebbtide_reclaim_backlog_tokens",
            "Dropped staging areas whose entries are not released yet.",
        )

        self._schedules = ScheduleFamilies()
        self.registry.register(self._schedules)

    def show_schedules(self, found: Sequence[Schedule]) -> None:
        """Sets the schedules that the metrics show."""
        self._schedules.shown = found

    def count_reclaimed(self, done: Reclaimed) -> None:
        """Adds the result of one batch of the reclaimer."""
        self.reclaimed.inc(done.deleted_count)
        self.reclaimed_bytes.inc(done.deleted_bytes)
        self.reclaim_failures.inc(done.failed_count)

    def show_backlog(self, backlog: Backlog, now: datetime) -> None:
        """Sets the gauges that show the reclaimer's backlog at `now`."""
        oldest = backlog.oldest_at
        self.reclaim_backlog.set(backlog.address_count)
        self.reclaim_tokens.set(backlog.token_count)
        self.reclaim_age.set(0 if oldest is None else (now - oldest).total_seconds())

    def render(self) -> bytes:
        """Returns the metrics as text."""
        if self._shared is None:
            return generate_latest(self.registry)
        for path in self._shared.glob("gauge_live*.db"):
            if not _is_alive(int(path.stem.rpartition("_")[2])):
                path.unlink(missing_ok=True)  # the process died: it answers no request any more
        summed = CollectorRegistry()
        MultiProcessCollector(summed, str(self._shared))  # type: ignore[no-untyped-call]
        summed.register(self._schedules)
        return generate_latest(summed)


def _is_alive(pid: int) -> bool:
    """Whether a process of this server has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Measuring:
    """Counts requests, their bytes and their duration."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request and measures it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics = self._metrics
        status = 500
        started = time.monotonic()

        async def counted_receive() -> Message:
            message = await receive()
            metrics.received.inc(len(message.get("body", b"")))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            metrics.sent.inc(len(message.get("body", b"")))
            await send(message)

        with metrics.under_way.track_inprogress():
            try:
                await self._app(scope, counted_receive, counted_send)
            finally:
                # All paths without a route share one label: a client could invent any number of
                # paths.
                route = getattr(scope.get("route"), "path_format", "none")
                method = scope["method"] if route != "none" else "any"
                metrics.requests.labels(method, route, str(status)).inc()
                metrics.seconds.labels(method, route).observe(time.monotonic() - started)
