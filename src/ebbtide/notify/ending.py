"""The end of a run, as other programs are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ebbtide.errors import EbbtideError, ExitCode

EVENT: Final = "run_ended"
OUTCOMES: Final = ("planned", "swept", "incomplete", "refused", "failed")
"""The states of reports, and `failed` for a run that an error ended without a report."""

_BY_CODE: Final = {ExitCode.REFUSED: "refused", ExitCode.INCOMPLETE: "incomplete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of a plan, a sweep or both.

    - `action`: `plan`, `sweep` or `run`.
    - `outcome`: one of OUTCOMES.
    - `report`: what `RunReport.to_json` returns; None if an error ended the run.
    - `error`: the `kind` and `message` of the error, or of the report's error; None without any.
    """

    repository: str
    action: str
    outcome: str
    started_at: datetime
    ended_at: datetime
    run_id: str | None = None
    report: Mapping[str, Any] | None = None
    error: Mapping[str, str] | None = None

    @property
    def seconds(self) -> float:
        """The seconds from the start to the end, by the clock of this machine."""
        return (self.ended_at - self.started_at).total_seconds()

    def to_json(self) -> dict[str, Any]:
        """Returns the document that a webhook and a program get."""
        return {
            "event": EVENT,
            "repository": self.repository,
            "action": self.action,
            "outcome": self.outcome,
            "run_id": self.run_id,
            "started_at": self.started_at.isoformat(),
            "ended_at": self.ended_at.isoformat(),
            "seconds": self.seconds,
            "report": None if self.report is None else dict(self.report),
            "error": None if self.error is None else dict(self.error),
        }


def end_of_report(
    repository: str,
    action: str,
    report: Mapping[str, Any],
    *,
    started_at: datetime,
    ended_at: datetime,
) -> RunEnd:
    """Returns the end of a run that has a report, in the form of `RunReport.to_json`."""
    return RunEnd(
        repository=repository,
        action=action,
        outcome=report["state"],
        started_at=started_at,
        ended_at=ended_at,
        run_id=report["run_id"],
        report=report,
        error=report["error"],
    )


def outcome_of(error: Exception) -> str:
    """Returns the outcome of a run that an error ended without a report."""
    code = error.exit_code if isinstance(error, EbbtideError) else ExitCode.FAILED
    return _BY_CODE.get(code, "failed")


def error_of(error: Exception) -> dict[str, str]:
    """Returns the `kind` and `message` of an error. An error that is none of Ebbtide's is of the
    kind `internal`."""
    if isinstance(error, EbbtideError):
        return {"kind": error.kind, "message": error.message}
    return {"kind": "internal", "message": f"a defect in this program: {type(error).__name__}"}
