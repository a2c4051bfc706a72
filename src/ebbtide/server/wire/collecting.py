"""Retention, preparations for other collectors, and runs of our own."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from ebbtide.errors import InvalidInput
from ebbtide.server.wire.base import Pagination, Text, Wire
from ebbtide.store.days import DayRules
from ebbtide.store.exporting import CommitsExport

DAYS_MAX = 36_500


class BranchDays(Wire):
    """For how many days one branch's commits keep their data."""

    branch_id: Text
    retention_days: int


class DaysAnswer(Wire):
    """A policy of days."""

    default_retention_days: int
    branches: list[BranchDays]

    @classmethod
    def of(cls, rules: DayRules) -> DaysAnswer:
        """Branches by name."""
        branches = [
            BranchDays(branch_id=name, retention_days=days)
            for name, days in sorted(rules.branches.items())
        ]
        return cls(default_retention_days=rules.default_days, branches=branches)

    def rules(self) -> DayRules:
        """Returns the rules. Raises InvalidInput `invalid_policy` where a branch has two."""
        branches: dict[str, int] = {}
        for rule in self.branches:
            if rule.branch_id in branches:
                raise InvalidInput(
                    "invalid_policy", f"branch {rule.branch_id!r} has two rules: keep one of them"
                )
            branches[rule.branch_id] = rule.retention_days
        return DayRules(self.default_retention_days, branches)


class PolicyDocument(Wire):
    """A policy as `ebbtide retention` writes it."""

    policy: dict[Text, Any]


class PolicyAnswer(Wire):
    """The policy, and after a change the patterns in it that match no branch."""

    policy: dict[str, Any]
    unmatched: list[str] | None = None


class PreparedCommits(Wire):
    """Where the commits that keep their data are listed."""

    run_id: str
    gc_commits_location: str
    gc_addresses_location: str

    @classmethod
    def of(cls, export: CommitsExport) -> PreparedCommits:
        """One export."""
        return cls(
            run_id=export.export_id,
            gc_commits_location=export.commits_url,
            gc_addresses_location=export.addresses_url,
        )


class TaskAnswer(Wire):
    """A task that was begun."""

    id: str


class TaskError(Wire):
    """Why a task failed."""

    message: str


class TaskStatus(Wire):
    """How far a task is."""

    task_id: str
    completed: bool
    update_time: datetime
    result: PreparedCommits | None = None
    error: TaskError | None = None


class UncommittedRequest(Wire):
    """Without a token, the first part."""

    continuation_token: Text | None = None


class PreparedUncommitted(Wire):
    """Where one part of what is uncommitted is listed; with a token there are more."""

    run_id: str
    gc_uncommitted_location: str
    continuation_token: str | None = None


class RunCreation(Wire):
    """What a run is to do: plan and sweep; plan alone; or sweep the plan of an earlier run. With a
    `quarantine` (a period) a sweep moves aside what goes. Without `sizes`, the setting decides of
    which files a directory is asked for size and date."""

    mode: Literal["auto", "clean", "incremental"] = "auto"
    grace: Annotated[str, Field(max_length=64)] | None = None
    unsafe: bool = False
    allow_share: bool = False
    sizes: Literal["all", "candidates"] | None = None
    dry_run: bool = False
    sweep: Text | None = None
    quarantine: Annotated[str, Field(max_length=64)] | None = None


class UndoRequest(Wire):
    """With `under`, only the files whose addresses begin so come back. `sweeps_ended` says that no
    process of any sweep is left, suspended ones among them: then what one was about to take comes
    back too."""

    under: Text | None = None
    sweeps_ended: bool = False


class StepAnswer(Wire):
    """A step of a run that is under way, or of which this server saw the end."""

    step: str
    seconds: float
    ended: bool


class RunAnswer(Wire):
    """A run. `report` is what `ebbtide gc show --json` prints of it."""

    run_id: str
    state: Literal["running", "planned", "swept", "incomplete", "refused", "failed", "undone"]
    steps: list[StepAnswer] = Field(default_factory=list)
    report: dict[str, Any] | None = None
    error: dict[str, str] | None = None


class RunList(Wire):
    """Runs, the newest first."""

    pagination: Pagination
    results: list[RunAnswer]
