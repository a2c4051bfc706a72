"""Runs of the collector: start, list, show, undo and purge them; explain what they keep.

Runs are those of this server's jobs, those of other processes, and recorded ones.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

from fastapi import Body, Query
from pydantic import Field, create_model

from ebbtide.api.collected import Collected
from ebbtide.audit.explain import LIMIT
from ebbtide.errors import Conflict, EbbtideError, InvalidInput, NotFound, Refused
from ebbtide.gc.collector import Collector
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolders
from ebbtide.ids import newest_first
from ebbtide.run_request import Option, ServedOptions, options_of, request_of
from ebbtide.server.api.base import Segment, Text, Wire
from ebbtide.server.api.lists import PageOf, PagingDep
from ebbtide.server.api.routes import Routes
from ebbtide.server.job_files import Job
from ebbtide.server.jobs import Action, Order
from ebbtide.server.serving import Served, ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.text import shown

CHARACTERS_MAX: Final = 64
"""The most characters of a value."""


def body_of(asked: type) -> Any:  # mypy takes no class made by a function as a base
    """Returns the base of a request that has the options of a run (`ebbtide.run_request`), those of
    a class, each with its help."""
    fields = {name: _field(option) for name, option in options_of(asked).items()}
    return create_model("Options", __base__=Wire, **fields)


def _field(option: Option) -> Any:  # a type and its pydantic field
    kind: Any = Annotated[str, Field(max_length=CHARACTERS_MAX)] | None
    if option.is_flag:
        kind = bool
    elif option.choices:
        kind = Literal[option.choices]
        kind = kind if option.default else kind | None
    return kind, Field(option.default, description=option.help)


class RunCreation(body_of(ServedOptions)):  # type: ignore[misc]  # made from the options
    """The options of a run, which plans and sweeps. With `dry_run` it only plans. With `sweep`, the
    id of an earlier run, it sweeps the plan of that run.

    Without a `quarantine`, only files of a lakeFS repository go to quarantine. Without `sizes`, the
    setting decides. A sweep of a plan with `accept_lost_commits` does not need it again.
    """

    sweep: Text | None = None


class UndoRequest(Wire):
    """With `under`, only files whose addresses begin with this prefix are restored.

    `sweeps_ended` states that no process of any sweep exists any more, not even a suspended one.
    Then files that a sweep was about to delete are restored too.
    """

    under: Text | None = None
    sweeps_ended: bool = False


class StepAnswer(Wire):
    """A step of a run. Only the server that started the run knows its steps."""

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


def start(served: Served, found: Collected, asked: RunCreation) -> RunAnswer:
    """Starts a run as a job.

    Raises the errors of `Jobs.start`. For a sweep it also raises NotFound `run_not_found` and
    Conflict `plan_used`.
    """
    if asked.sweep and found.collector().show(asked.sweep).state == "swept":
        raise Conflict("plan_used", f"run {asked.sweep} was swept already: start a new one")
    action: Action = "plan" if asked.dry_run else "run"
    return _start(
        served,
        found,
        action="sweep" if asked.sweep else action,
        run_id=asked.sweep or None,
        options=request_of(asked.model_dump()),
    )


def undo(served: Served, found: Collected, run_id: str, asked: UndoRequest) -> RunAnswer:
    """Restores the files in a run's quarantine, as a job. Raises as `start`, and NotFound
    `not_quarantined`."""
    _require_quarantine(found, run_id)
    return _start(
        served,
        found,
        action="undo",
        run_id=run_id,
        under=asked.under or "",
        sweeps_ended=asked.sweeps_ended,
    )


def purge(served: Served, found: Collected, run_id: str) -> RunAnswer:
    """Deletes the files in a run's quarantine for good, as a job. Raises as `undo`."""
    _require_quarantine(found, run_id)
    return _start(served, found, action="purge", run_id=run_id)


def _require_quarantine(found: Collected, run_id: str) -> None:
    report = found.collector().show_held(run_id)
    if report.quarantine is None or report.quarantine["state"] == "purged":
        raise NotFound("not_quarantined", f"run {run_id} has no files in quarantine")
    if report.state == "undone":
        raise Conflict("plan_used", f"run {run_id} was undone already")


def _start(served: Served, found: Collected, **what: Any) -> RunAnswer:  # fields of Order
    order = Order(
        directory=served.store.directory,
        settings=served.settings,
        repository=found.name,
        repository_id=found.key,
        **what,
    )
    return _of_job(served.jobs.start(order))


def get(served: Served, found: Collected, run_id: str) -> RunAnswer:
    """Returns one run. Raises NotFound `run_not_found`."""
    known = _Known(served, found)
    if run_id not in known.ids:
        raise NotFound("run_not_found", f"there is no run {shown(run_id)} of {found.name}")
    return known.answer(run_id)


def page(
    served: Served, found: Collected, *, after: str, amount: int
) -> tuple[list[RunAnswer], str | None]:
    """Returns some runs, the newest first, and the `after` of the next page (None on the last
    page). Runs that are dated in the future come last."""
    known, now = _Known(served, found), found.form.now()
    ordered = newest_first({*known.ids, *([after] if after else [])}, now)
    ids = ordered[ordered.index(after) + 1 :] if after else ordered
    answers = [known.answer(run_id) for run_id in ids[:amount]]
    return answers, answers[-1].run_id if len(ids) > amount else None


class _Known:
    """All known runs of a repository: from the jobs of this server, the lease, and the records."""

    def __init__(self, served: Served, found: Collected) -> None:
        # If a run has several jobs, the newest one counts.
        jobs = reversed(served.jobs.of(found.key))
        self._jobs = {job.run_id: job for job in jobs if job.run_id is not None}
        self._held = found.running_id()
        self._recorded = RunFolders(found.form).paths()
        self._collector = found.collector()

    @property
    def ids(self) -> set[str]:
        """The ids of all runs."""
        return {*self._jobs, *self._recorded, *([] if self._held is None else [self._held])}

    def answer(self, run_id: str) -> RunAnswer:
        """Returns the state of a run from its best source.

        A job that still runs knows most. After the job has ended, the record counts, because other
        processes may have changed it since.
        """
        job = self._jobs.get(run_id)
        if job is not None and not job.ended:
            return _of_job(job)
        if run_id == self._held:
            return RunAnswer(run_id=run_id, state="running")
        if run_id in self._recorded:
            steps = [] if job is None else _of_job(job).steps
            return _recorded(self._collector, run_id).model_copy(update={"steps": steps})
        assert job is not None  # the id is one of `ids`
        return _of_job(job)


def steps_of(job: Job) -> list[StepAnswer]:
    """Returns the steps that a job has begun."""
    now = time.monotonic()
    return [
        StepAnswer(
            step=step.step,
            seconds=round(now - step.started if step.seconds is None else step.seconds, 3),
            ended=step.seconds is not None,
        )
        for step in list(job.steps)
    ]


def _of_job(job: Job) -> RunAnswer:
    assert job.run_id is not None  # jobs without a run id are not listed
    steps = steps_of(job)
    if job.report is not None:
        report = RunReport.from_json(job.report)
        return RunAnswer(
            run_id=job.run_id,
            state=report.state,
            steps=steps,
            report=job.report,
            error=job.report["error"],
        )
    return RunAnswer(
        run_id=job.run_id,
        state="failed" if job.ended else "running",
        steps=steps,
        error=job.error,
    )


def _recorded(collector: Collector, run_id: str) -> RunAnswer:
    """Returns a recorded run. If its files are damaged or missing, its state is `failed`: one such
    run must not hide the others."""
    try:
        report = collector.show(run_id)
    except (NotFound, Refused) as error:
        return RunAnswer(run_id=run_id, state="failed", error=_error(error))
    document = report.to_json()
    return RunAnswer(run_id=run_id, state=report.state, report=document, error=document["error"])


def _error(error: EbbtideError) -> dict[str, str]:
    return {"kind": error.kind, "message": error.message}


routes = Routes("gc")

LIMIT_MAX: Final = 1000
_REPOSITORY: Final = "/repositories/{repository:segment}"
_GC: Final = _REPOSITORY + "/gc"


@routes.add("POST", _GC + "/runs", Role.ADMIN, status=202)
def start_run(
    repository: Segment,
    served: ServedDep,
    asked: Annotated[RunCreation | None, Body()] = None,
) -> RunAnswer:
    """Starts a run. The answer comes when the run has the lease of the repository."""
    return start(served, served.collected(repository), asked or RunCreation())


@routes.add("POST", _GC + "/runs/{run_id:segment}/undo", Role.ADMIN, status=202)
def undo_run(
    repository: Segment,
    run_id: Segment,
    served: ServedDep,
    asked: Annotated[UndoRequest | None, Body()] = None,
) -> RunAnswer:
    """Restores the files in a run's quarantine. The answer comes when the undo has the lease
    of the repository."""
    return undo(served, served.collected(repository), run_id, asked or UndoRequest())


@routes.add("POST", _GC + "/runs/{run_id:segment}/purge", Role.ADMIN, status=202)
def purge_run(repository: Segment, run_id: Segment, served: ServedDep) -> RunAnswer:
    """Deletes the files in a run's quarantine for good."""
    return purge(served, served.collected(repository), run_id)


@routes.add("GET", _GC + "/runs", Role.READER)
def list_runs(repository: Segment, paging: PagingDep, served: ServedDep) -> PageOf[RunAnswer]:
    """Lists the runs, also those in progress, the newest first."""
    found = served.collected(repository)
    results, last = page(served, found, after=paging.after, amount=paging.amount)
    return PageOf(paging.pagination(len(results), last), results)


@routes.add("GET", _GC + "/runs/{run_id:segment}", Role.READER)
def get_run(repository: Segment, run_id: Segment, served: ServedDep) -> RunAnswer:
    """Returns one run: its progress, or its outcome."""
    return get(served, served.collected(repository), run_id)


@routes.add("GET", _REPOSITORY + "/explain", Role.READER)
def explain(
    repository: Segment,
    served: ServedDep,
    address: Annotated[Text | None, Query()] = None,
    commit: Annotated[Text | None, Query()] = None,
    ref: Annotated[Text | None, Query()] = None,
    path: Annotated[Text | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT,
) -> dict[str, Any]:
    """Explains an address, a commit, a ref, or the object of a ref at a path. Give exactly one of
    `address`, `commit` and `ref`. The answer is the output of `ebbtide explain --json`."""
    given = [each for each in (address, commit, ref) if each is not None]
    if len(given) != 1 or (path is not None and ref is None):
        raise InvalidInput(
            "invalid_argument", "give exactly one of address, commit and ref; path needs ref"
        )
    explainer = served.collected(repository).explainer(limit=limit)
    if address is not None:
        return explainer.address(address).to_json()
    if path is not None:
        return explainer.explain(given[0], path).to_json()
    return explainer.commit(given[0]).to_json()
