"""Tells all that the settings name of the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    warnings = [_told("telemetry", partial(_tell_telemetry, end))]
    file = metrics_file or settings.run_metrics_file
    if file is not None:
        from ebbtide.notify.metrics_file import write_metrics

        warnings.append(_told("the file of metrics", partial(write_metrics, file, end)))
    if settings.run_webhook is not None:
        from ebbtide.notify.webhook import post

        told = partial(post, settings.run_webhook, settings.run_webhook_secret, end)
        warnings.append(_told("the webhook", told))
    if settings.run_hook is not None:
        from ebbtide.notify.hook import start_hook

        warnings.append(_told("the hook", partial(start_hook, settings.run_hook, end)))
    return [each for each in warnings if each is not None]


def _told(whom: str, tell_it: Callable[[], str | None]) -> str | None:
    """Returns the warning of a way of telling, also if that way has a defect: the answer of a run
    that has deleted files must not be lost to it."""
    try:
        return tell_it()
    except Exception as error:  # noqa: BLE001 - told as a warning
        # The text of the error can have a secret.
        return f"{whom} was not told of this run: a defect in this program: {type(error).__name__}"


def _tell_telemetry(end: RunEnd) -> None:
    """Sets the gauges of OpenTelemetry, with the names and values of the file for Prometheus."""
    if telemetry.is_on():
        for each in samples_of(end):
            telemetry.set_gauge(each.name, each.value, dict(each.labels), text=FAMILIES[each.name])
