"""One run for a scheduler: a repository, its options, and figures for the scheduler's records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.api.repositories import PlannedRun, open_repository
from ebbtide.errors import InvalidInput
from ebbtide.gc.report import RunReport


def collect(
    repository: str,
    *,
    store: str | None = None,
    master: str | None = None,
    dry_run: bool = False,
    options: Mapping[str, Any] | None = None,  # those of `CollectedRepository.run`
) -> RunReport:
    """Plans a run and sweeps it; with `dry_run` it only plans. Returns the report.

    Raises as `CollectedRepository.run` does: a refused or incomplete run is an error. Also raises
    InvalidInput `invalid_argument` for `accept_lost_commits`: a scheduler repeats its options, and
    would accept each later loss too.
    """
    if (options or {}).get("accept_lost_commits"):
        raise InvalidInput(
            "invalid_argument",
            "a scheduled run cannot accept lost commits, because each later run would accept them "
            f"too: use 'ebbtide gc plan {repository} --accept-lost-commits' once, and sweep that "
            "plan",
        )
    with open_repository(repository, store=store, master=master) as found:
        return found.run(confirm=_refuse if dry_run else None, **(options or {}))


def _refuse(_plan: PlannedRun) -> bool:
    return False


def figures(report: RunReport) -> dict[str, str | int | None]:
    """Returns the figures of a run, as plain values: `run_id`, `state`, the numbers and bytes of
    candidates and of deleted files, and the number of commits that lost their data. Bytes are None
    if some sizes were not read. `unfinished_steps` counts the last steps that failed after the
    sweep, and `incidents` the warnings about needed files that were absent."""
    counted = report.to_json()
    names = ("candidate_count", "candidate_bytes", "deleted_count", "deleted_bytes")
    return {
        "run_id": report.run_id,
        "state": report.state,
        **{name: counted[name] for name in names},
        "expired_commits": report.commits.get("expired", 0),
        "unfinished_steps": len(report.unfinished),
        "incidents": len(report.incidents),
    }
