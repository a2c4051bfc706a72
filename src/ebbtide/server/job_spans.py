"""Spans of a job, for OpenTelemetry. The server makes them from the messages of the job's process,
so that only the server needs an SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ebbtide import telemetry
from ebbtide.gc.report import outcome_attributes
from ebbtide.telemetry import Traced, is_on, start_span


class JobSpans:
    """The span of one job, and within it those of its steps."""

    def __init__(self, job: Traced) -> None:
        self._job = job
        self._steps: dict[str, Traced] = {}

    @classmethod
    def of(cls, action: str, repository: str) -> JobSpans | None:
        """Starts the span of a job within the present span, which is the request's. None where
        nobody could receive spans."""
        if not is_on():
            return None
        return cls(start_span(f"gc {action}", {telemetry.REPOSITORY: repository}))

    def note(self, what: str, values: Sequence[Any]) -> None:
        """Takes a message of the job's process: a step that starts or ends, the id of the run, its
        report, or an error."""
        if what == "start":
            self._steps[values[0]] = self._job.child(values[0])
        elif what == "end" and values[0] in self._steps:
            self._steps.pop(values[0]).end()
        elif what == "run":
            self._job.note({telemetry.RUN_ID: values[0]})
        elif what == "report":
            self._job.note(outcome_attributes(values[0]))

    def end(self, error: Mapping[str, str] | None) -> None:
        """Ends the spans that are left: of the job, and of a step that an error ended."""
        for step in [*self._steps.values(), self._job]:
            if error is not None:
                step.fail(error["kind"])
            step.end()
