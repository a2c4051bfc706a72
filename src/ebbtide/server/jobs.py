"""Collector runs and looks as jobs: each has a process of its own, which tells in a file what it
does, and a thread of the server that waits for its end.

A *look* computes the effect of policies, or the usage, and deletes nothing. Jobs are processes
because requests must not wait for the memory and processors of a run. The process of a job ends
with the server, also if the server is killed. This does no harm: the plan of a run can be swept
again. Not for: the steps of a run (`ebbtide.gc`), or runs of other processes (`api.runs`).
"""

from __future__ import annotations

import logging
import multiprocessing
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import finalize

from ebbtide import logs, telemetry
from ebbtide.api.collected import Collected, open_collected
from ebbtide.api.engines import Hidden, make_engine
from ebbtide.api.looks import curve_json, usage_json
from ebbtide.errors import (
    Conflict,
    EbbtideError,
    Failed,
    InvalidInput,
    NotFound,
    Refused,
    UnknownRepository,
)
from ebbtide.gc.report import outcome_attributes
from ebbtide.logs import bind_request, bind_run, request_id
from ebbtide.notify import RunStart, tell
from ebbtide.prices import Prices
from ebbtide.processes import follow_parent
from ebbtide.retention import Policy
from ebbtide.run_request import RunRequest
from ebbtide.server.job_files import WORKER_DIED, Job, JobFile, add_job, read_jobs
from ebbtide.server.warm import Gateway, WarmSpark
from ebbtide.settings import Settings
from ebbtide.telemetry import Traced, start_span

if TYPE_CHECKING:
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.engines.base import Engine
    from ebbtide.gc.report import RunReport
    from ebbtide.gc.steps import Event

START_SECONDS_MAX: Final = 60
WAIT_SECONDS: Final = 0.02
"""How often the file of a job that starts is read."""

NOTIFIED: Final = ("plan", "sweep", "run")
"""The actions whose end other programs are told of."""

logger = logging.getLogger(__name__)

Tell = Callable[[str, Any], None]
"""Adds a line to the file of a job."""
Action = Literal["run", "plan", "sweep", "undo", "purge", "look"]
Look = Literal["policies", "curve", "usage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The parameters of a job.

    The action `plan` makes a plan, and `run` also sweeps it. `sweep`, `undo` and `purge` work on
    the run `run_id`. `look` computes `looks_at`: for `policies`, the comparison of `policies` with
    the present policy; for `curve`, that of the `rule` for a pattern.

    `under` and `sweeps_ended` are arguments of `Collector.undo`. `gateway` is set if the job
    uses the server's Spark. `request_id` and `trace_ids` are those of the request that ordered the
    job, for the log. `is_scheduled`: no person waits for the answer.
    """

    directory: Path | None
    settings: Settings
    repository: str
    repository_id: str
    options: RunRequest = field(default_factory=RunRequest)
    action: Action = "run"
    run_id: str | None = None
    under: str = ""
    sweeps_ended: bool = False
    looks_at: Look = "policies"
    policies: tuple[Policy, ...] = ()
    rule: str | None = None
    gateway: Gateway | None = None
    request_id: str | None = None
    trace_ids: Mapping[str, str] = field(default_factory=dict)
    is_scheduled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A job of this process that has not ended. `ended` is set when its file says how it ended."""

    file: JobFile
    order: Order
    process: Any  # a ForkServerProcess of multiprocessing
    span: Traced
    start: RunStart
    ended: threading.Event = field(default_factory=threading.Event)
    followers: list[Callable[[Job], None]] = field(default_factory=list)


class Jobs:
    """The jobs of one server. Thread-safe. All that is known of a job is in its file, which every
    process of the server reads. Only the process that started a job can end it."""

    def __init__(
        self,
        on_change: Callable[[int], None],
        warm: WarmSpark | None = None,
        directory: Path | None = None,
    ) -> None:
        """`directory` is that of the files, which all processes of a server share. Without one,
        they are in a temporary directory."""
        self._lock = threading.Lock()
        self._warm = warm or WarmSpark()
        self._directory = directory or Path(tempfile.mkdtemp(prefix="ebbtide-jobs-"))
        if directory is None:
            finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._running: dict[JobFile, _Running] = {}
        self._on_change = on_change
        self._is_closing = False

    def start(self, order: Order) -> Job:
        """Starts a job, and waits until its run has an id.

        Raises the error that kept the run, or Spark, from starting. Raises Failed `worker_died` if
        the process reports nothing within START_SECONDS_MAX seconds, or dies first.
        """
        running = self._begin(order)
        latest = time.monotonic() + START_SECONDS_MAX
        job = running.file.read()
        while job.run_id is None and not job.ended and time.monotonic() < latest:
            running.ended.wait(WAIT_SECONDS)
            job = running.file.read()
        failure = _failure(job) if job.ended or job.run_id is None else None
        if failure is not None:
            running.process.terminate()
            running.ended.wait()
            running.file.remove()
            raise failure
        return job

    def look(self, order: Order, *, owner: str) -> Job:
        """Starts a look: a job that changes nothing, and takes no lease. If the same owner has an
        unfinished look of the repository, that look is ended first."""
        for job in self._all(order.repository_id):
            running = self._running.get(job.file)
            # A look of another process goes on: only that process can end it.
            if job.look_id and job.owner == owner and running is not None:
                running.process.terminate()
        look = replace(order, action="look")
        return self._begin(look, look_id=secrets.token_hex(16), owner=owner).file.read()

    def find_look(self, repository_id: str, look_id: str) -> Job | None:
        """Returns a look that this server started; None if there is none of that id."""
        return next((job for job in self._all(repository_id) if job.look_id == look_id), None)

    def looks(self, repository_id: str, looks_at: Look) -> list[Job]:
        """Returns the looks of a repository at one thing, the newest first."""
        return [job for job in self._all(repository_id) if job.looks_at == looks_at]

    def of(self, repository_id: str) -> list[Job]:
        """Returns the jobs of a repository whose run has an id, the newest first."""
        return [job for job in self._all(repository_id) if job.run_id]

    def find(self, repository_id: str, run_id: str) -> Job | None:
        """Returns the newest job of a run; None if this server started none."""
        return next((job for job in self.of(repository_id) if job.run_id == run_id), None)

    def _all(self, repository_id: str) -> list[Job]:
        return [job for job in read_jobs(self._directory) if job.repository_id == repository_id]

    def when_ended(self, job: Job, follower: Callable[[Job], None]) -> None:
        """Calls `follower` once a job of this process has ended, in a thread of its own or at once.
        It is not called if the server ends the job."""
        with self._lock:
            running = self._running.get(job.file)
            if running is not None:
                running.followers.append(follower)
                return
        follower(job.file.read())

    def close(self) -> None:
        """Ends every job. A run that is ended here can be swept again, and nobody is told of its
        end."""
        with self._lock:
            self._is_closing = True
            left = list(self._running.values())
        for running in left:
            running.process.terminate()
        for running in left:
            running.ended.wait()
        self._warm.close()

    def _begin(self, order: Order, *, look_id: str | None = None, owner: str = "") -> _Running:
        """Starts the process of a job, and the thread that waits for its end."""
        start = RunStart(order.repository, order.action)
        gateway = self._warm.lend(order.settings)
        looks_at = "" if look_id is None else order.looks_at
        file = add_job(
            self._directory, order.repository_id, look_id=look_id, looks_at=looks_at, owner=owner
        )
        options = order.options
        if look_id is not None:
            # A look deletes nothing, so that any grace is safe.
            options = {**options, "run_dir": str(file.directory), "unsafe": True}
        span = start_span(f"gc {order.action}", {telemetry.REPOSITORY: order.repository})
        given = replace(
            order,
            gateway=gateway,
            options=options,
            request_id=request_id(),
            trace_ids=telemetry.trace_ids(),
            settings=order.settings.model_copy(update={"log_level": logs.level()}),
        )
        process = fork_server().Process(target=_work, args=(given, file), name="collector")
        running = _Running(file=file, order=given, process=process, span=span, start=start)
        process.start()
        with self._lock:
            if self._is_closing:
                process.terminate()
                raise Failed(WORKER_DIED, "the server is ending: start the run again later")
            self._running[file] = running
        self._changed()
        # The thread's lines in the log have the id of the request.
        watch = partial(copy_context().run, self._watch, running)
        threading.Thread(target=watch, daemon=True).start()
        return running

    def _watch(self, running: _Running) -> None:
        """Waits for the end of a job, and tells all that want to know of it."""
        order = running.order
        running.process.join()
        if order.gateway is not None:
            self._warm.give_back(order.settings.server_spark_idle)
        job = running.file.end()
        if not self._is_closing:
            _log_end(job)
        _end_spans(running.span, job)
        with self._lock:
            del self._running[job.file]
        running.ended.set()
        self._changed()
        if self._is_closing:
            return
        for follower in running.followers:
            follower(job)
        # Last, because a webhook can take long.
        if order.action in NOTIFIED:
            _notify(order, running.start, job)

    def _changed(self) -> None:
        with self._lock:
            self._on_change(sum(each.order.action != "look" for each in self._running.values()))


def fork_server() -> ForkServerContext:
    """Returns the context that forks the processes of jobs and tables. The fork server itself
    starts with the first of them. It has no threads, and has loaded the modules of a run."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["ebbtide.server.preload"])
    return forks


def _notify(order: Order, start: RunStart, job: Job) -> None:
    """Tells other programs of the end of a run. The log gets a warning for each that could not be
    told. Input that is not valid, and names that do not exist, are no runs, unless a schedule has
    them: then nobody else notices."""
    is_input = job.error is not None and _CLASSES.get(job.error["kind"]) in (InvalidInput, NotFound)
    if is_input and not order.is_scheduled:
        return
    report = job.report
    end = start.failed(job.error, job.run_id) if report is None else start.reported(report)
    for warning in tell(end, order.settings):
        logger.warning("%s: %s", order.repository, warning)


def _log_end(job: Job) -> None:
    """Writes the end of a job to the log."""
    if job.run_id is not None:
        bind_run(job.run_id)
    if job.error is not None and job.error["kind"] == WORKER_DIED:
        logger.warning("%s", job.error["message"])
    elif job.error is not None:
        level = logging.INFO if job.error["kind"] in _CLASSES else logging.WARNING
        logger.log(level, "the run failed: %s: %s", job.error["kind"], job.error["message"])
    elif job.report is not None and job.look_id is None:
        logger.info("the run is %s", job.report["state"])


def _end_spans(span: Traced, job: Job) -> None:
    """Ends the span of a job, and makes those of its steps within it. The server makes them, so
    that only the server needs an SDK."""
    span.note({telemetry.RUN_ID: job.run_id})
    if job.report is not None and job.look_id is None:
        span.note(outcome_attributes(job.report))
    kind = None if job.error is None else job.error["kind"]
    for step in job.steps:
        made = span.child(step.step, began=step.started)
        if step.seconds is None and kind is not None:
            made.fail(kind)
        made.end(None if step.seconds is None else step.started + step.seconds)
    if kind is not None:
        span.fail(kind)
    span.end()


def _failure(job: Job) -> EbbtideError | None:
    """Returns the error that kept a run from starting; None if the run started, whatever its
    outcome."""
    if job.report is not None:
        error = job.report["error"]
        stopped = error is not None and error["kind"] == "run_in_progress"
        return Refused(**error) if stopped else None
    silent = f"the run did not start within {START_SECONDS_MAX} seconds, and was ended: try again"
    error = job.error or {"kind": WORKER_DIED, "message": silent}
    if job.run_id is not None and error["kind"] in (WORKER_DIED, "internal"):
        return None
    return _CLASSES.get(error["kind"], Failed)(**error)


_CLASSES: Final[dict[str, type[EbbtideError]]] = {
    "unsafe_grace": InvalidInput,
    "invalid_duration": InvalidInput,
    "invalid_argument": InvalidInput,
    "run_not_found": NotFound,
    "repository_not_found": UnknownRepository,
    "plan_used": Conflict,
}


def _work(order: Order, file: JobFile) -> None:
    """The main function of a job's process.

    If the server is killed, the process ends, and its workers with it. Interrupts (SIGINT) are
    ignored: an interrupted server ends its jobs itself.
    """
    follow_parent()
    settings = order.settings
    logs.set_up(settings.log_format, settings.log_level, secrets=settings.secrets)
    bind_request(order.request_id)
    telemetry.turn_off(order.trace_ids)  # the server makes the spans of its jobs
    try:
        _collect(order, file.tell)
    except EbbtideError as error:
        file.tell("error", {"kind": error.kind, "message": error.message})
    except Exception as error:
        message = f"a defect in this program: {type(error).__name__}: {error}"
        file.tell("error", {"kind": "internal", "message": message})
        raise


def _collect(order: Order, tell: Tell) -> None:
    with _opened(order) as found:

        def on_hold(run_id: str) -> None:
            bind_run(run_id)
            tell("run_id", run_id)
            logger.info("the run has the repository %s", order.repository_id)

        def on_step(step: str, event: Event) -> None:
            tell(event, step)
            if event == "start":
                logger.info("step %s", step)

        options = found.options(**order.options)
        collector = found.collector(_engine(order), options, on_step)
        collector.on_hold = on_hold
        if order.action == "look":
            tell("report", _look(order, collector, tell))
        else:
            report = _act(order, collector)
            tell("run_id", report.run_id)
            tell("report", report.to_json())


@contextmanager
def _opened(order: Order) -> Iterator[Collected]:
    """Opens the repository of an order."""
    from ebbtide.store.embedded import Store

    with ExitStack() as until_done:

        def store() -> Store:
            return until_done.enter_context(Store.open(order.directory, settings=order.settings))

        found = open_collected(order.repository, settings=order.settings, store=store)
        if found.key != order.repository_id:
            raise UnknownRepository(
                "repository_not_found",
                f"repository {order.repository} was deleted and made anew since the request",
            )
        yield found


def _engine(order: Order) -> Engine:
    if order.gateway is None:
        return make_engine(order.settings, None, Hidden())
    from ebbtide.gc.engines.spark.engine import SparkEngine
    from ebbtide.gc.engines.spark.session import attach

    attached = cache(partial(attach, order.gateway))
    return SparkEngine(attached, executors_wait=order.settings.spark_executors_wait)


def _look(order: Order, collector: Collector, tell: Tell) -> dict[str, Any]:
    """Carries out a look, and returns its result. A comparison of policies sends a `found` message
    for each policy as soon as its result is known, and returns its instant and grace (`now`,
    `grace_seconds`)."""
    from ebbtide.gc.whatif import Alternative, reclaimable_json

    prices = Prices.of(order.settings)
    if order.looks_at == "curve":
        return curve_json(collector.curve(order.rule), prices)
    if order.looks_at == "usage":
        return usage_json(collector.usage(), prices)
    known: list[Alternative] = []

    def found(each: Alternative) -> None:
        known.append(each)
        tell("found", reclaimable_json(each, known[0], prices))

    looked = collector.what_if(order.policies, found=found)
    return {"now": looked.now.isoformat(), "grace_seconds": looked.grace_seconds}


def _act(order: Order, collector: Collector) -> RunReport:
    if order.action == "undo":
        return collector.undo(
            order.run_id or "", under=order.under, sweeps_ended=order.sweeps_ended
        )
    if order.action == "purge":
        return collector.purge(order.run_id or "")
    if order.action == "sweep":
        return collector.sweep(order.run_id)
    return collector.plan() if order.action == "plan" else collector.run()
