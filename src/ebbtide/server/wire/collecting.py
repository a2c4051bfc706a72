"""Retention policies, exports for other collectors, and runs of Ebbtide's collector."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from ebbtide.errors import InvalidInput
from ebbtide.server.wire.base import Pagination, Text, Wire
from ebbtide.store.collecting.exporting import CommitsExport
from ebbtide.store.refs.policies import DayRules

DAYS_MAX = 36_500


class BranchDays(Wire):
    """For how many days the commits of one branch keep their data."""

    branch_id: Text
    retention_days: int


class DaysAnswer(Wire):
    """A policy in days: a default, and the days of single branches."""

    default_retention_days: int
    branches: list[BranchDays]

    @classmethod
    def of(cls, rules: DayRules) -> DaysAnswer:
        """Makes the answer for the rules, with the branches sorted by name."""
        branches = [
            BranchDays(branch_id=name, retention_days=days)
            for name, days in sorted(rules.branches.items())
        ]
        return cls(default_retention_days=rules.default_days, branches=branches)

    def rules(self) -> DayRules:
        """Returns the rules. Raises InvalidInput `invalid_policy` if a branch has two rules."""
        branches: dict[str, int] = {}
        for rule in self.branches:
            if rule.branch_id in branches:
                raise InvalidInput(
                    "invalid_policy", f"branch {rule.branch_id!r} has two rules: keep one of them"
                )
            branches[rule.branch_id] = rule.retention_days
        return DayRules(self.default_retention_days, branches)


class PolicyDocument(Wire):
    """A policy in the JSON form of `ebbtide retention`."""

    policy: dict[Text, Any]


class PolicyAnswer(Wire):
    """The policy. After a change, `unmatched` lists the patterns of the policy that match no
    branch."""

    policy: dict[str, Any]
    unmatched: list[str] | None = None


class PreparedCommits(Wire):
    """The locations of an export: a CSV file of the commits that keep their data, and a free place
    for addresses."""

    run_id: str
    gc_commits_location: str
    gc_addresses_location: str

    @classmethod
    def of(cls, export: CommitsExport) -> PreparedCommits:
        """Makes the answer for an export."""
        return cls(
            run_id=export.export_id,
            gc_commits_location=export.commits_url,
            gc_addresses_location=export.addresses_url,
        )


class TaskAnswer(Wire):
    """A task that has begun."""

    id: str


class TaskError(Wire):
    """The reason why a task failed."""

    message: str


class TaskStatus(Wire):
    """The progress of a task."""

    task_id: str
    completed: bool
    update_time: datetime
    result: PreparedCommits | None = None
    error: TaskError | None = None


class UncommittedRequest(Wire):
    """A request for one part of the uncommitted addresses; without a token, the first part."""

    continuation_token: Text | None = None


class PreparedUncommitted(Wire):
    """The location of one part of the uncommitted addresses. A token means that more parts
    follow."""

    run_id: str
    gc_uncommitted_location: str
    continuation_token: str | None = None


class RunCreation(Wire):
    """The options of a run: plan and sweep; with `dry_run`, plan only; with `sweep`, sweep the plan
    of that earlier run.

    With a `quarantine` (a period) the sweep moves files to quarantine instead of deleting them.
    `sizes` says of which files a directory is asked for size and date; without it, the setting
    decides.
    """

    mode: Literal["auto", "clean", "incremental"] = "auto"
    grace: Annotated[str, Field(max_length=64)] | None = None
    unsafe: bool = False
    allow_share: bool = False
    sizes: Literal["all", "candidates"] | None = None
    dry_run: bool = False
    sweep: Text | None = None
    quarantine: Annotated[str, Field(max_length=64)] | None = None


class UndoRequest(Wire):
    """With `under`, only files whose addresses begin with this prefix are restored.

    `sweeps_ended` states that no process of any sweep exists any more, not even a suspended one.
    Then files that a sweep was about to delete are restored too.
    """

    under: Text | None = None
    sweeps_ended: bool = False


class StepAnswer(Wire):
    """A step of a run. Steps are known while the run is in progress, and on the server that saw
    them end."""

    step: str
    seconds: float
    ended: bool


class RunAnswer(Wire):
    """A run. `report` is the output of `ebbtide gc show --json`."""

    run_id: str
    state: Literal["running", "planned", "swept", "incomplete", "refused", "failed", "undone"]
    steps: list[StepAnswer] = Field(default_factory=list)
    report: dict[str, Any] | None = None
    error: dict[str, str] | None = None


class RunList(Wire):
    """Runs, the newest first."""

    pagination: Pagination
    results: list[RunAnswer]
