"""Spans and gauges for OpenTelemetry, through its API alone (`opentelemetry-api`).

An SDK, which exports them, loads the API before this program starts. Where no SDK has done so,
nobody could receive a span: then nothing is imported here, and each function returns at once.

Not for: setting up an SDK, the file for Prometheus (`notify.py`), and the server's own
metrics (`server/metrics.py`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from ebbtide.errors import EbbtideError

if TYPE_CHECKING:
    from opentelemetry.metrics import _Gauge as Gauge
    from opentelemetry.trace import Span, Tracer

NAME: Final = "ebbtide"
REPOSITORY: Final = "ebbtide.repository"
RUN_ID: Final = "ebbtide.run_id"
REQUEST_ID: Final = "ebbtide.request_id"
_API: Final = "opentelemetry.trace"

_off: Final = threading.Event()
_given_ids: Final[dict[str, str]] = {}
"""What `trace_ids` returns in a process that makes no spans."""

Value = str | int | float | bool
Attributes = Mapping[str, Value | None]
"""By name. None stands for no attribute."""


def is_on() -> bool:
    """Returns whether something in this process has loaded OpenTelemetry's API."""
    return _API in sys.modules and not _off.is_set()


def turn_off(ids: Mapping[str, str]) -> None:
    """Makes no spans and gauges in this process from now on: another process makes them. `ids` are
    its `trace_ids`, for the log."""
    _given_ids.update(ids)
    _off.set()


class Traced:
    """One span, or nothing where nobody could receive it."""

    def __init__(self, span: Span | None) -> None:
        self._span = span

    def note(self, attributes: Attributes) -> None:
        """Adds attributes to the span."""
        if self._span is not None:
            self._span.set_attributes(_present(attributes))

    def rename(self, name: str) -> None:
        """Changes the span's name, which can be known late: of a request, with its route."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, kind: str) -> None:
        """Marks the span as failed, with the kind of the error. Its text stays out, because it can
        have names of users' files."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, kind))
            self._span.set_attribute("error.type", kind)

    def child(self, name: str, began: float) -> Traced:
        """Returns a span within this one, which the caller ends. It began at this time of the
        monotonic clock."""
        if self._span is None:
            return Traced(None)
        from opentelemetry.trace import set_span_in_context

        within = set_span_in_context(self._span)
        return Traced(_tracer().start_span(name, context=within, start_time=_nanoseconds(began)))

    def end(self, at: float | None = None) -> None:
        """Ends the span at a time of the monotonic clock; without one, now."""
        if self._span is not None:
            self._span.end(None if at is None else _nanoseconds(at))


def is_tracing() -> bool:
    """Returns whether somebody could receive a span: an SDK or a test has set a provider. FastAPI
    loads the API itself, and sets none."""
    if not is_on():
        return False
    from opentelemetry.trace import ProxyTracer, ProxyTracerProvider, get_tracer_provider

    waits = isinstance(_tracer(), ProxyTracer)
    return not (waits and isinstance(get_tracer_provider(), ProxyTracerProvider))


@contextmanager
def span(name: str, attributes: Attributes | None = None) -> Iterator[Traced]:
    """Yields a span for the block. An error marks it as failed, and is raised again."""
    with _current(start_span(name, attributes)) as traced:
        yield traced


@contextmanager
def request_span(name: str, headers: Mapping[str, str]) -> Iterator[Traced]:
    """Yields a span of the kind *server* for the block. `headers` can name the client's span, as
    W3C's Trace Context does (`traceparent`)."""
    if not is_on():
        yield Traced(None)
        return
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    started = _tracer().start_span(name, context=extract(headers), kind=SpanKind.SERVER)
    with _current(Traced(started)) as traced:
        yield traced


def start_span(name: str, attributes: Attributes | None = None) -> Traced:
    """Starts a span that the caller ends, within the present span."""
    if not is_on():
        return Traced(None)
    return Traced(_tracer().start_span(name, attributes=_present(attributes or {})))


def trace_ids() -> dict[str, str]:
    """Returns `trace_id` and `span_id` of the present span, in hex as W3C's Trace Context has them.
    Empty outside of spans."""
    if not is_on():
        return dict(_given_ids)
    from opentelemetry.trace import get_current_span

    present = get_current_span().get_span_context()
    if not present.is_valid:
        return {}
    return {"trace_id": f"{present.trace_id:032x}", "span_id": f"{present.span_id:016x}"}


def set_gauge(name: str, value: float, attributes: Attributes, *, text: str) -> None:
    """Sets a gauge of OpenTelemetry's metrics. `text` describes it."""
    if is_on():
        _gauge(name, text).set(value, _present(attributes))


@contextmanager
def _current(traced: Traced) -> Iterator[Traced]:
    """Makes a span the present one for the block, and ends it after the block."""
    if traced._span is None:
        yield traced
        return
    from opentelemetry.trace import use_span

    with use_span(
        traced._span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield traced
        except BaseException as error:
            traced.fail(error.kind if isinstance(error, EbbtideError) else type(error).__name__)
            raise


def _nanoseconds(at: float) -> int:
    """Returns a time of the monotonic clock in the form of OpenTelemetry."""
    return time.time_ns() - round((time.monotonic() - at) * 1e9)


def _present(attributes: Attributes) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


@cache
def _tracer() -> Tracer:
    from opentelemetry.trace import get_tracer

    return get_tracer(NAME, version(NAME))


@cache
def _gauge(name: str, text: str) -> Gauge:
    """A gauge is made once: an SDK warns of a second one with its name."""
    from opentelemetry.metrics import get_meter

    return get_meter(NAME, version(NAME)).create_gauge(name, description=text)
