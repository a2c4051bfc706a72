"""The figures of a run's end, by the names that Prometheus and OpenTelemetry know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ebbtide.notify.ending import OUTCOMES, RunEnd

OUTCOME: Final = "ebbtide_run_outcome"
LAST_SUCCESS: Final = "ebbtide_run_last_success_time_seconds"

FAMILIES: Final[Mapping[str, str]] = {
    OUTCOME: "1 for the outcome of the last run, 0 for the others.",
    "ebbtide_run_start_time_seconds": "When the last run started, in seconds since 1970.",
    "ebbtide_run_end_time_seconds": "When the last run ended, in seconds since 1970.",
    "ebbtide_run_seconds": "Time that the last run took.",
    LAST_SUCCESS: (
        "When the last complete sweep ended, in seconds since 1970. 0 if that is later than the "
        "last run: a clock was ahead."
    ),
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
class RunSample:
    """One figure of a run. `labels` are names and values."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


def samples_of(end: RunEnd, success: float | None = None) -> Iterator[RunSample]:
    """Yields the figures of a run. Without a plan there are no figures of files. `success` is the
    end of the last complete sweep before this run. It is told as 0 if it is later than this
    run: a clock was ahead, and an alarm for its age would be silent until then."""
    own = (("repository", end.repository),)
    for outcome in OUTCOMES:
        yield RunSample(OUTCOME, (("outcome", outcome), *own), float(outcome == end.outcome))
    yield RunSample("ebbtide_run_start_time_seconds", own, end.started_at.timestamp())
    yield RunSample("ebbtide_run_end_time_seconds", own, end.ended_at.timestamp())
    yield RunSample("ebbtide_run_seconds", own, end.seconds)
    latest = end.ended_at.timestamp() if end.outcome == "swept" else success
    if latest is not None:
        is_ahead = latest > end.ended_at.timestamp()
        yield RunSample(LAST_SUCCESS, own, 0.0 if is_ahead else latest)
    if end.report is not None and end.report["listed_count"]:
        for each in _COUNTED:
            yield RunSample(f"ebbtide_run_{each}_files", own, end.report[f"{each}_count"])
            known_bytes = end.report[f"{each}_bytes"]
            if f"ebbtide_run_{each}_bytes" in FAMILIES and known_bytes is not None:
                yield RunSample(f"ebbtide_run_{each}_bytes", own, known_bytes)
