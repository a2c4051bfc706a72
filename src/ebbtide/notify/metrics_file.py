"""Figures of the last run of each repository, in a file of Prometheus's text format.

The textfile collector of Prometheus's node exporter reads such files. A file has the figures of any
number of repositories: a run replaces those of its own repository, and keeps the others.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.notify.ending import OUTCOMES, RunEnd

LOCK_TRIES: Final = 100
LOCK_PAUSE_SECONDS: Final = 0.1

OUTCOME: Final = "ebbtide_run_outcome"
LAST_SUCCESS: Final = "ebbtide_run_last_success_time_seconds"

FAMILIES: Final[Mapping[str, str]] = {
    OUTCOME: "1 for the outcome of the last run, 0 for the others.",
    "ebbtide_run_start_time_seconds": "When the last run started, in seconds since 1970.",
    "ebbtide_run_end_time_seconds": "When the last run ended, in seconds since 1970.",
    "ebbtide_run_seconds": "Time that the last run took.",
    LAST_SUCCESS: "When the last complete sweep ended, in seconds since 1970.",
    "ebbtide_run_listed_files": "Files that the last run found.",
    "ebbtide_run_listed_bytes": "Bytes of the files that the last run found, as far as known.",
    "ebbtide_run_candidate_files": "Candidates of the last run.",
    "ebbtide_run_candidate_bytes": "Bytes of the candidates of the last run, as far as known.",
    "ebbtide_run_deleted_files": "Files that the last run deleted.",
    "ebbtide_run_deleted_bytes": "Bytes that the last run deleted, as far as known.",
    "ebbtide_run_quarantined_files": "Files that the last run put in quarantine.",
    "ebbtide_run_quarantined_bytes": "Bytes that the last run put in quarantine, as far as known.",
    "ebbtide_run_missing_files": "Candidates that were gone already when the last run deleted.",
    "ebbtide_run_failed_files": "Candidates that the last run could not delete.",
}
"""The metrics and their help. All are gauges with the label `repository`; OUTCOME has the label
`outcome` as well."""

_COUNTED: Final = ("listed", "candidate", "deleted", "quarantined", "missing", "failed")


@dataclass(frozen=True, slots=True)
class _Sample:
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


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
    for sample in [*kept, *_samples(end, success)]:
        gauges[sample.name].labels(**dict(sample.labels)).set(sample.value)
    write_to_textfile(str(path), registry)


def _read(path: Path) -> list[_Sample]:
    """Returns the samples of a file that an earlier run wrote. Other metrics are not kept."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [
        _Sample(sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in FAMILIES
    ]


def _samples(end: RunEnd, success: float | None) -> Iterator[_Sample]:
    """Yields the figures of a run. Without a plan there are no figures of files. `success` is the
    end of the last complete sweep before this run."""
    own = (("repository", end.repository),)
    for outcome in OUTCOMES:
        yield _Sample(OUTCOME, (("outcome", outcome), *own), float(outcome == end.outcome))
    yield _Sample("ebbtide_run_start_time_seconds", own, end.started_at.timestamp())
    yield _Sample("ebbtide_run_end_time_seconds", own, end.ended_at.timestamp())
    yield _Sample("ebbtide_run_seconds", own, end.seconds)
    latest = end.ended_at.timestamp() if end.outcome == "swept" else success
    if latest is not None:
        yield _Sample(LAST_SUCCESS, own, latest)
    if end.report is not None and end.report["listed_count"]:
        for each in _COUNTED:
            yield _Sample(f"ebbtide_run_{each}_files", own, end.report[f"{each}_count"])
            known_bytes = end.report[f"{each}_bytes"]
            if f"ebbtide_run_{each}_bytes" in FAMILIES and known_bytes is not None:
                yield _Sample(f"ebbtide_run_{each}_bytes", own, known_bytes)
