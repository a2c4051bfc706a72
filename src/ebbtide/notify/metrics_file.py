"""Figures of the last run of each repository, in a file of Prometheus's text format.

The textfile collector of Prometheus's node exporter reads such files. A file has the figures of any
number of repositories: a run replaces those of its own repository, and keeps the others.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.notify.ending import RunEnd
from ebbtide.notify.samples import FAMILIES, LAST_SUCCESS, OUTCOME, RunSample, samples_of

LOCK_TRIES: Final = 100
LOCK_PAUSE_SECONDS: Final = 0.1


def write_metrics(path: Path, end: RunEnd) -> str | None:
    """Writes the figures of a run into a file. Returns a warning if that failed, else None.

    A reader of the file sees either the old content or the new one. Two processes may write at one
    time: each waits for the other, some ten seconds at most.
    """
    try:
        with _locked(path.parent):
            _replace(path, end)
    except (OSError, ValueError) as error:
        # A value error is a file that is not in Prometheus's format.
        return f"the metrics of this run were not written to {path}: {error}"
    return None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds a lock on the directory, which needs no file of its own."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _take(opened, directory)
        yield
    finally:
        os.close(opened)


def _take(opened: int, directory: Path) -> None:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_SECONDS)
        else:
            return
    raise TimeoutError(f"another process has the lock of {directory}")


def _replace(path: Path, end: RunEnd) -> None:
    old = _read(path)
    own = [each for each in old if dict(each.labels).get("repository") == end.repository]
    kept = [each for each in old if each not in own]
    success = next((each.value for each in own if each.name == LAST_SUCCESS), None)
    registry = CollectorRegistry()
    gauges = {
        name: Gauge(
            name,
            text,
            ["repository", "outcome"] if name == OUTCOME else ["repository"],
            registry=registry,
        )
        for name, text in FAMILIES.items()
    }
    for sample in [*kept, *samples_of(end, success)]:
        gauges[sample.name].labels(**dict(sample.labels)).set(sample.value)
    write_to_textfile(str(path), registry)


def _read(path: Path) -> list[RunSample]:
    """Returns the samples of a file that an earlier run wrote. Other metrics are not kept."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [
        RunSample(sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in FAMILIES
    ]
