"""Runs over HTTP: those that a job here is at, those of other processes, and those on record."""

from __future__ import annotations

import time
from itertools import islice

from ebbtide.errors import Conflict, EbbtideError, NotFound, Refused
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.engine import LocalEngine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.gc.workers import Workers
from ebbtide.server.jobs import Job, Order
from ebbtide.server.serving import Served
from ebbtide.server.wire.collecting import RunAnswer, RunCreation, StepAnswer


def start(served: Served, repository: str, asked: RunCreation) -> RunAnswer:
    """Start a run as a job. Raises as `Jobs.start`, NotFound `repository_not_found`; for a sweep,
    NotFound `run_not_found` and Conflict `plan_used`."""
    found = served.repository(repository)
    if asked.sweep and _collector(served, repository).show(asked.sweep).state == "swept":
        raise Conflict("plan_used", f"run {asked.sweep} was swept already: start a new one")
    order = Order(
        directory=served.store.directory,
        settings=served.settings,
        repository=found.info.name,
        mode=asked.mode,
        grace=asked.grace,
        unsafe=asked.unsafe,
        allow_share=asked.allow_share,
        dry_run=asked.dry_run,
        sweep=asked.sweep or None,
    )
    return _of_job(served.jobs.start(order))


def get(served: Served, repository: str, run_id: str) -> RunAnswer:
    """One run. Raises NotFound `run_not_found`."""
    found = served.repository(repository)
    job = served.jobs.find(found.info.name, run_id)
    if job is not None:
        return _of_job(job)
    if _running_elsewhere(served, repository) == run_id:
        return RunAnswer(run_id=run_id, state="running")
    if run_id not in _format(served, repository).run_paths():
        raise NotFound("run_not_found", f"there is no run {run_id[:100]!r} of {repository}")
    return _recorded(_collector(served, repository), run_id)


def page(
    served: Served, repository: str, *, after: str, amount: int
) -> tuple[list[RunAnswer], str | None]:
    """Some runs, the newest first, and the `after` of the next page. Ids sort as runs do."""
    found = served.repository(repository)
    jobs = {job.run_id: job for job in reversed(served.jobs.of(found.info.name))}
    running = _running_elsewhere(served, repository)
    known = {*jobs, *_format(served, repository).run_paths(), running} - {None}
    ids = sorted(run_id for run_id in known if run_id is not None and run_id > after)
    collector = _collector(served, repository)
    answers = []
    for run_id in islice(ids, amount):
        if run_id in jobs:
            answers.append(_of_job(jobs[run_id]))
        elif run_id == running:
            answers.append(RunAnswer(run_id=run_id, state="running"))
        else:
            answers.append(_recorded(collector, run_id))
    return answers, answers[-1].run_id if len(ids) > amount else None


def _of_job(job: Job) -> RunAnswer:
    assert job.run_id is not None  # it would not be known otherwise
    now = time.monotonic()
    steps = [
        StepAnswer(
            step=step.step,
            seconds=round(now - step.started if step.seconds is None else step.seconds, 3),
            ended=step.seconds is not None,
        )
        for step in list(job.steps)
    ]
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
    """A run whose files are damaged or gone hides no other."""
    try:
        report = collector.show(run_id)
    except (NotFound, Refused) as error:
        return RunAnswer(run_id=run_id, state="failed", error=_error(error))
    document = report.to_json()
    return RunAnswer(run_id=run_id, state=report.state, report=document, error=document["error"])


def _error(error: EbbtideError) -> dict[str, str]:
    return {"kind": error.kind, "message": error.message}


def _running_elsewhere(served: Served, repository: str) -> str | None:
    return served.repository(repository).running_id()


def _format(served: Served, repository: str) -> EmbeddedRepository:
    return EmbeddedRepository(served.repository(repository).context, store_id=served.store.store_id)


def _collector(served: Served, repository: str) -> Collector:
    """For reading what is on record: it needs no workers, and starts none."""

    def no_session() -> None:
        raise AssertionError("reading a record needs no Spark")

    engine = LocalEngine(no_session, workers=Workers(1))  # type: ignore[arg-type]
    options = RunOptions.of(served.settings)
    return Collector(_format(served, repository), engine=engine, options=options)
