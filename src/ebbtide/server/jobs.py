"""Collector runs and looks as jobs: each has a process of its own, and a thread of the server that
watches it.

A *look* computes what other policies would free, and deletes nothing. Jobs are processes because
requests must not wait for the memory and processors of a run. The process of a job ends with the
server, also if the server is killed. This does no harm: the plan of a run can be swept again. Not
for: the steps of a run (`ebbtide.gc`), or runs of other processes (`api.runs`).
"""

from __future__ import annotations

import logging
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ebbtide import logs, telemetry
from ebbtide.api.collected import Collected, open_collected
from ebbtide.api.engines import chosen_master
from ebbtide.clock import SystemClock
from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput, NotFound, Refused
from ebbtide.logs import bind_request, bind_run, request_id
from ebbtide.notify.ending import RunEnd, end_of_report
from ebbtide.notify.telling import tell
from ebbtide.processes import REMOTE, follow_parent
from ebbtide.retention import Policy
from ebbtide.server.forks import fork_server
from ebbtide.server.job_files import JobFiles
from ebbtide.server.job_spans import JobSpans
from ebbtide.server.warm import Gateway, WarmSpark
from ebbtide.settings import Settings

if TYPE_CHECKING:
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.engines.base import Engine
    from ebbtide.gc.options import Sizes
    from ebbtide.gc.report import RunReport

START_SECONDS_MAX: Final = 60
JOBS_KEPT: Final = 100

NOTIFIED: Final = ("plan", "sweep", "run")
"""The actions whose end other programs are told of."""

logger = logging.getLogger(__name__)

Tell = Callable[..., None]
Action = Literal["run", "plan", "sweep", "undo", "purge", "look"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The parameters of a job.

    The action `plan` makes a plan, and `run` also sweeps it. `sweep`, `undo` and `purge` work on
    the run `run_id`. `look` compares policies.

    `under` and `sweeps_ended` are arguments of `Collector.undo`. A look compares `policies` with
    the present policy, and writes its files below `run_dir`. `gateway` is set if the job uses the
    server's Spark. `request_id` is the request that ordered the job, for the log. `is_scheduled`:
    no person waits for the answer.
    """

    directory: Path | None
    settings: Settings
    repository: str
    repository_id: str
    mode: str = "auto"
    grace: str | None = None
    unsafe: bool = False
    allow_share: bool = False
    accept_lost_commits: bool = False
    sizes: Sizes | None = None
    quarantine: str | None = None
    action: Action = "run"
    run_id: str | None = None
    under: str = ""
    sweeps_ended: bool = False
    policies: tuple[Policy, ...] = ()
    run_dir: str | None = None
    gateway: Gateway | None = None
    request_id: str | None = None
    is_scheduled: bool = False


@dataclass(slots=True)
class StepState:
    """One step of a job. `seconds` is its duration; None while it runs."""

    step: str
    started: float
    seconds: float | None = None


@dataclass(slots=True)
class Job:
    """One run or look that this server started. `report` or `error` is set when the job has ended.

    `found` holds the results of a look so far, in the form of `reclaimable_json`, the present
    policy first. `begun` is when it was started, on the clock of the machine. `process` is None for
    a job of another process of the server, which can only be read.
    """

    repository_id: str
    process: Any  # a ForkServerProcess of multiprocessing
    run_id: str | None = None
    look_id: str | None = None
    owner: str = ""
    directory: tempfile.TemporaryDirectory[str] | None = None
    found: list[dict[str, Any]] = field(default_factory=list)
    steps: list[StepState] = field(default_factory=list)
    report: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    ended: bool = False
    begun: float = field(default_factory=time.monotonic)
    known: threading.Event = field(default_factory=threading.Event)
    on_end: Callable[[], None] | None = None
    spans: JobSpans | None = None
    notify: Callable[[Job], None] | None = None
    followers: list[Callable[[Job], None]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Returns what other processes of the server may know of the job, as values of JSON."""
        steps = [[each.step, each.started, each.seconds] for each in self.steps]
        return {name: getattr(self, name) for name in _SHARED} | {"steps": steps}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Job:
        """Returns a job of another process from its state."""
        steps = [StepState(*each) for each in state["steps"]]
        return cls(process=None, steps=steps, **{name: state[name] for name in _SHARED})


_SHARED: Final = (
    "repository_id",
    "run_id",
    "look_id",
    "owner",
    "found",
    "report",
    "error",
    "ended",
    "begun",
)
"""The fields of a job that other processes of the server may know, besides its steps."""


class Jobs:
    """The jobs of one server. Thread-safe. `files` shows them to its other processes, and theirs
    to this one."""

    def __init__(
        self,
        on_change: Callable[[int], None],
        warm: WarmSpark | None = None,
        files: JobFiles | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._warm = warm or WarmSpark()
        self._files = files
        self._jobs: list[Job] = []
        self._on_change = on_change
        self._is_closing = False

    def start(self, order: Order) -> Job:
        """Starts a job, and waits until its run has an id.

        Raises the error that kept the run, or Spark, from starting. Raises Failed `worker_died` if
        the process reports nothing within START_SECONDS_MAX seconds, or dies first.
        """
        started_at = SystemClock().host_now()
        job, connection = self._new(order)
        if order.action in NOTIFIED:
            job.notify = partial(_notify, order, started_at)
        self._begin(job, connection)
        job.known.wait(START_SECONDS_MAX)
        failure = _failure(job) if job.ended or job.run_id is None else None
        if failure is not None:
            self._drop(job)
            raise failure
        return job

    def look(self, order: Order, *, owner: str) -> Job:
        """Starts a look: a job that compares policies, and takes no lease. If the same owner has an
        unfinished look of the repository, that look is ended first."""
        for job in self._looks(order.repository_id):
            # A look of another process goes on: only that process can end it.
            if job.owner == owner and not job.ended and job.process is not None:
                job.process.terminate()
        directory = tempfile.TemporaryDirectory(prefix="ebbtide-", ignore_cleanup_errors=True)
        job, connection = self._new(replace(order, action="look", run_dir=directory.name))
        job.look_id, job.owner, job.directory = secrets.token_hex(16), owner, directory
        self._begin(job, connection)
        return job

    def find_look(self, repository_id: str, look_id: str) -> Job | None:
        """Returns a look that this server started; None if there is none of that id."""
        found = (each for each in self._looks(repository_id) if each.look_id == look_id)
        return next(found, None)

    def when_ended(self, job: Job, follower: Callable[[Job], None]) -> None:
        """Calls `follower` once the job has ended, in a thread of its own or at once. It is not
        called if the server ends the job."""
        with self._lock:
            if not job.ended:
                job.followers.append(follower)
                return
        follower(job)

    def _looks(self, repository_id: str) -> list[Job]:
        return [job for job in self._all(repository_id) if job.look_id]

    def _all(self, repository_id: str) -> list[Job]:
        """Returns the jobs of a repository, also those of other processes, the newest first."""
        others = [] if self._files is None else map(Job.of_state, self._files.others())
        with self._lock:
            found = [job for job in (*self._jobs, *others) if job.repository_id == repository_id]
        return sorted(found, key=lambda job: job.begun, reverse=True)

    def _new(self, order: Order) -> tuple[Job, Connection]:
        """Starts the process of a job; returns the job and the connection that delivers its
        messages."""
        idle = order.settings.server_spark_idle
        gateway = self._warm.lend(order.settings)
        forks = fork_server()
        ours, theirs = forks.Pipe(duplex=False)
        given = replace(order, gateway=gateway, request_id=request_id())
        process = forks.Process(target=_work, args=(given, theirs), name="collector")
        process.start()
        theirs.close()
        ended = partial(self._warm.give_back, idle) if gateway is not None else None
        spans = JobSpans.of(order.action, order.repository)
        return Job(order.repository_id, process, on_end=ended, spans=spans), ours

    def _begin(self, job: Job, connection: Connection) -> None:
        with self._lock:
            if self._is_closing:
                job.process.terminate()
                raise Failed("worker_died", "the server is ending: start the run again later")
            ended = [each for each in self._jobs if each.ended][:JOBS_KEPT]
            self._jobs = [job, *(each for each in self._jobs if not each.ended), *ended]
        self._share(job)
        self._changed()
        # The thread's lines in the log have the id of the request.
        watch = partial(copy_context().run, self._watch, job, connection)
        threading.Thread(target=watch, daemon=True).start()

    def _drop(self, job: Job) -> None:
        if not job.ended:
            job.process.terminate()
        with self._lock:
            self._jobs = [each for each in self._jobs if each is not job]
            self._keep_files()

    def of(self, repository_id: str) -> list[Job]:
        """Returns the jobs of a repository whose run has an id, the newest first."""
        return [job for job in self._all(repository_id) if job.run_id]

    def find(self, repository_id: str, run_id: str) -> Job | None:
        """Returns the newest job of a run; None if this server started none."""
        return next((job for job in self.of(repository_id) if job.run_id == run_id), None)

    def close(self) -> None:
        """Ends every job. A run that is ended here can be swept again, and nobody is told of its
        end."""
        with self._lock:
            self._is_closing = True
            jobs = list(self._jobs)
        for job in jobs:
            if not job.ended:
                job.process.terminate()
        for job in jobs:
            job.process.join()
            _clear(job)
        self._warm.close()

    def _watch(self, job: Job, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    what, *values = connection.recv()
                except (EOFError, OSError):
                    break
                if job.spans is not None:
                    job.spans.note(what, values)
                _note(job, what, values)
                self._share(job)
        job.process.join()
        _clear(job)
        if job.on_end is not None:
            job.on_end()
        if job.report is None and job.error is None:
            is_run = job.look_id is None
            what, todo = ("run", "sweep the run") if is_run else ("trial", "try the policies")
            error = Failed("worker_died", f"the process of the {what} died: {todo} again")
            job.error = {"kind": error.kind, "message": error.message}
            if not self._is_closing:
                logger.warning("%s", error.message)
        if job.spans is not None:
            job.spans.end(job.error)
        with self._lock:
            job.ended = True
            followers = list(job.followers)
        self._share(job)
        job.known.set()
        self._changed()
        if self._is_closing:
            return
        for follower in followers:
            follower(job)
        # Last, because a webhook can take long.
        if job.notify is not None:
            job.notify(job)

    def _share(self, job: Job) -> None:
        """Shows the state of a job to the other processes of the server, unless it was dropped."""
        if self._files is None:
            return
        with self._lock:
            if any(each is job for each in self._jobs):
                self._files.write(id(job), job.state())
            self._keep_files()

    def _keep_files(self) -> None:
        if self._files is not None:
            self._files.keep(map(id, self._jobs))

    def _changed(self) -> None:
        with self._lock:
            self._on_change(sum(not job.ended and job.look_id is None for job in self._jobs))


def _clear(job: Job) -> None:
    """Deletes the temporary directory of a look, also if the look's process was terminated."""
    if job.directory is not None:
        job.directory.cleanup()


def _notify(order: Order, started_at: datetime, job: Job) -> None:
    """Tells other programs of the end of a run. The log gets a warning for each that could not be
    told. Input that is not valid, and names that do not exist, are no runs, unless a schedule has
    them: then nobody else notices."""
    is_input = job.error is not None and _CLASSES.get(job.error["kind"]) in (InvalidInput, NotFound)
    if is_input and not order.is_scheduled:
        return
    ended_at = SystemClock().host_now()
    if job.report is not None:
        end = end_of_report(
            order.repository, order.action, job.report, started_at=started_at, ended_at=ended_at
        )
    else:
        end = RunEnd(
            repository=order.repository,
            action=order.action,
            outcome="failed",
            started_at=started_at,
            ended_at=ended_at,
            run_id=job.run_id,
            error=job.error,
        )
    for warning in tell(end, order.settings):
        logger.warning("%s: %s", order.repository, warning)


def _note(job: Job, what: str, values: list[Any]) -> None:
    now = time.monotonic()
    if what == "run":
        job.run_id = values[0]
        bind_run(values[0])
        logger.info("the run has the repository %s", job.repository_id)
        job.known.set()
    elif what == "start":
        logger.info("step %s", values[0])
        job.steps.append(StepState(values[0], now))
    elif what == "end":
        for step in job.steps:
            if step.step == values[0] and step.seconds is None:
                step.seconds = now - step.started
    elif what == "found":
        job.found.append(values[0])
    elif what == "looked":
        job.report = values[0]
    elif what == "report":
        job.report = values[0]
        job.run_id = values[0]["run_id"]
        logger.info("the run is %s", job.report["state"])
    else:
        level = logging.INFO if values[0] in _CLASSES else logging.WARNING
        logger.log(level, "the run failed: %s: %s", values[0], values[1])
        job.error = {"kind": values[0], "message": values[1]}


def _failure(job: Job) -> EbbtideError | None:
    """Returns the error that kept a run from starting; None if the run started, whatever its
    outcome."""
    if job.report is not None:
        error = job.report["error"]
        stopped = error is not None and error["kind"] == "run_in_progress"
        return Refused(**error) if stopped else None
    silent = f"the run did not start within {START_SECONDS_MAX} seconds, and was ended: try again"
    error = job.error or {"kind": "worker_died", "message": silent}
    if job.run_id is not None and error["kind"] in ("worker_died", "internal"):
        return None
    return _CLASSES.get(error["kind"], Failed)(**error)


_CLASSES: Final[dict[str, type[EbbtideError]]] = {
    "unsafe_grace": InvalidInput,
    "invalid_duration": InvalidInput,
    "invalid_argument": InvalidInput,
    "run_not_found": NotFound,
    "repository_not_found": NotFound,
    "plan_used": Conflict,
}


def _work(order: Order, connection: Connection) -> None:
    """The main function of a job's process.

    If the server is killed, the process ends, and its workers with it. Interrupts (SIGINT) are
    ignored: an interrupted server ends its jobs itself.
    """
    follow_parent()
    settings = order.settings
    logs.set_up(settings.log_format, settings.log_level, secrets=settings.secrets)
    bind_request(order.request_id)
    telemetry.turn_off()  # the server makes the spans of its jobs

    def tell(*message: Any) -> None:
        connection.send(message)

    try:
        _collect(order, tell)
    except EbbtideError as error:
        tell("error", error.kind, error.message)
    except Exception as error:
        tell("error", "internal", f"a defect in this program: {type(error).__name__}: {error}")
        raise


def _collect(order: Order, tell: Tell) -> None:
    with _opened(order) as found:

        def on_hold(run_id: str) -> None:
            bind_run(run_id)
            tell("run", run_id)

        found.form.on_hold = on_hold
        options = found.options(
            grace=order.grace,
            unsafe=order.unsafe or order.action == "look",  # a look deletes nothing
            allow_share=order.allow_share,
            accept_lost_commits=order.accept_lost_commits,
            run_dir=order.run_dir,
            mode=order.mode,
            sizes=order.sizes,
            quarantine=order.quarantine,
        )
        collector = found.collector(_engine(order), options, lambda step, event: tell(event, step))
        if order.action == "look":
            tell("looked", _look(order, collector, tell))
        else:
            tell("report", _act(order, collector).to_json())


@contextmanager
def _opened(order: Order) -> Iterator[Collected]:
    """Opens the repository of an order."""
    from ebbtide.store.embedded import Store

    with ExitStack() as until_done:

        def store() -> Store:
            return until_done.enter_context(Store.open(order.directory, settings=order.settings))

        found = open_collected(order.repository, settings=order.settings, store=store)
        if found.key != order.repository_id:
            raise NotFound(
                "repository_not_found",
                f"repository {order.repository} was deleted and made anew since the request",
            )
        yield found


def _engine(order: Order) -> Engine:
    if order.gateway is None:
        master = chosen_master(order.settings)
        if not master.startswith(REMOTE):
            from ebbtide.gc.engines.duckdb import DuckEngine

            return DuckEngine()
        from ebbtide.gc.engines.spark.conf import read_text
        from ebbtide.gc.engines.spark.connect import ConnectEngine, connect

        conf = read_text(order.settings.spark_conf)
        return ConnectEngine(master, partial(connect, master, conf))
    from ebbtide.gc.engines.spark.engine import SparkEngine
    from ebbtide.gc.engines.spark.session import attach

    attached = cache(partial(attach, order.gateway))
    return SparkEngine(attached, executors_wait=order.settings.spark_executors_wait)


def _look(order: Order, collector: Collector, tell: Tell) -> dict[str, Any]:
    """Carries out a look. Sends a `found` message for each policy as soon as its result is known;
    returns the look's instant and grace (`now`, `grace_seconds`)."""
    from ebbtide.gc.planning.whatif import Alternative, reclaimable_json

    price = order.settings.price_gb_month
    known: list[Alternative] = []

    def found(each: Alternative) -> None:
        known.append(each)
        tell("found", reclaimable_json(each, known[0], price))

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
