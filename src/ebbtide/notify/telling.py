"""Tells all that the settings name of the end of a run."""

from __future__ import annotations

from pathlib import Path

from ebbtide import telemetry
from ebbtide.notify.ending import RunEnd
from ebbtide.notify.samples import FAMILIES, samples_of
from ebbtide.settings import Settings


def tell(end: RunEnd, settings: Settings, *, metrics_file: Path | None = None) -> list[str]:
    """Tells all that the settings name. Returns a warning for each that could not be told.

    `metrics_file` overrides the setting. Raises nothing for a file, an address or a program that
    fails: the run has ended, and its outcome stays.
    """
    _tell_telemetry(end)
    warnings = []
    file = metrics_file or settings.run_metrics_file
    if file is not None:
        from ebbtide.notify.metrics_file import write_metrics

        warnings.append(write_metrics(file, end))
    if settings.run_webhook is not None:
        from ebbtide.notify.webhook import post

        warnings.append(post(settings.run_webhook, settings.run_webhook_secret, end))
    if settings.run_hook is not None:
        from ebbtide.notify.hook import start_hook

        warnings.append(start_hook(settings.run_hook, end))
    return [each for each in warnings if each is not None]


def _tell_telemetry(end: RunEnd) -> None:
    """Sets the gauges of OpenTelemetry, with the names and values of the file for Prometheus."""
    if telemetry.is_on():
        for each in samples_of(end):
            telemetry.set_gauge(each.name, each.value, dict(each.labels), text=FAMILIES[each.name])
