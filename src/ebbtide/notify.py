"""Tells other programs how a run ended: a file for Prometheus, gauges, a webhook, and a program.

Not for: metrics of the server (`server/metrics.py`), or the outcome of a run, which never depends
on whether the others could be told.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ebbtide import telemetry
from ebbtide.clock import SystemClock
from ebbtide.errors import EbbtideError, ExitCode
from ebbtide.redirects import NoRedirect
from ebbtide.settings import Settings

EVENT: Final = "run_ended"
OUTCOMES: Final = ("planned", "swept", "incomplete", "refused", "failed")
"""The states of reports, and `failed` for a run that an error ended without a report."""

_BY_CODE: Final = {ExitCode.REFUSED: "refused", ExitCode.INCOMPLETE: "incomplete"}

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
LOCK_TRIES: Final = 100
LOCK_PAUSE_SECONDS: Final = 0.1
SIGNATURE_HEADER: Final = "X-Ebbtide-Signature"
DELIVERY_HEADER: Final = "X-Ebbtide-Delivery"
TRY_SECONDS_MAX: Final = 10
PAUSES_SECONDS: Final = (1.0, 4.0)
"""The pauses between the tries. There is one try more than pauses."""
TOTAL_SECONDS_MAX: Final = 45
HOOK_SECONDS_MAX: Final = 60
STDERR: Final = 2


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


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start of a run, from which its end is made. The run starts now, by the machine's
    clock."""

    repository: str
    action: str
    started_at: datetime = field(default_factory=SystemClock().host_now)

    def reported(self, report: Mapping[str, Any]) -> RunEnd:
        """Returns the end of a run that has a report, in the form of `RunReport.to_json`."""
        return self._end(report["state"], report["run_id"], report["error"], report)

    def raised(self, error: Exception) -> RunEnd:
        """Returns the end of a run that an error ended without a report. An error that is none of
        Ebbtide's is of the kind `internal`."""
        if isinstance(error, EbbtideError):
            told = {"kind": error.kind, "message": error.message}
            return self._end(_BY_CODE.get(error.exit_code, "failed"), None, told)
        message = f"a defect in this program: {type(error).__name__}"
        return self.failed({"kind": "internal", "message": message})

    def failed(self, error: Mapping[str, str] | None, run_id: str | None = None) -> RunEnd:
        """Returns the end of a run whose process told this error."""
        return self._end("failed", run_id, error)

    def _end(
        self,
        outcome: str,
        run_id: str | None,
        error: Mapping[str, str] | None,
        report: Mapping[str, Any] | None = None,
    ) -> RunEnd:
        return RunEnd(
            repository=self.repository,
            action=self.action,
            outcome=outcome,
            started_at=self.started_at,
            ended_at=SystemClock().host_now(),
            run_id=run_id,
            report=report,
            error=error,
        )


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


def tell(end: RunEnd, settings: Settings, *, metrics_file: Path | None = None) -> list[str]:
    """Tells all that the settings name. Returns a warning for each that could not be told.

    `metrics_file` overrides the setting. Raises nothing for a file, an address or a program that
    fails: the run has ended, and its outcome stays.
    """
    warnings = [_told("telemetry", partial(_tell_telemetry, end))]
    file = metrics_file or settings.run_metrics_file
    if file is not None:
        warnings.append(_told("the file of metrics", partial(write_metrics, file, end)))
    if settings.run_webhook is not None:
        told = partial(post, settings.run_webhook, settings.run_webhook_secret, end)
        warnings.append(_told("the webhook", told))
    if settings.run_hook is not None:
        warnings.append(_told("the hook", partial(start_hook, settings.run_hook, end)))
    return [each for each in warnings if each is not None]


def _told(whom: str, tell_it: Callable[[], str | None]) -> str | None:
    """Returns the warning of a way of telling, also if that way has a defect: the answer of a run
    that has deleted files must not be lost to it."""
    try:
        return tell_it()
    except Exception as error:  # noqa: BLE001 - told as a warning
        # The text of the error can have a secret.
        return f"{whom} was not told of this run: a defect in this program: {type(error).__name__}"


def _tell_telemetry(end: RunEnd) -> None:
    """Sets the gauges of OpenTelemetry, with the names and values of the file for Prometheus."""
    if telemetry.is_on():
        for each in samples_of(end):
            telemetry.set_gauge(each.name, each.value, dict(each.labels), text=FAMILIES[each.name])


def write_metrics(path: Path, end: RunEnd) -> str | None:
    """Writes the figures of a run into a file of Prometheus's text format, which the textfile
    collector of its node exporter reads. Returns a warning if that failed, else None.

    A file has the figures of any number of repositories: those of other repositories are kept.
    A reader of the file sees either the old content or the new one. Two processes may write at one
    time: each waits for the other, some ten seconds at most.
    """
    try:
        with _locked(path.parent):
            _replace_metrics(path, end)
    except (OSError, ValueError) as error:
        # A value error is a file that is not in Prometheus's format.
        return f"the metrics of this run were not written to {path}: {error}"
    return None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds a lock on the directory, which needs no file of its own."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(LOCK_TRIES):
            with suppress(BlockingIOError):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(LOCK_PAUSE_SECONDS)
        else:
            raise TimeoutError(f"another process has the lock of {directory}")
        yield
    finally:
        os.close(opened)


def _replace_metrics(path: Path, end: RunEnd) -> None:
    # Not imported above: only the extra `server` brings it, and few runs write this file.
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    old = _read_metrics(path)
    own = [each for each in old if dict(each.labels).get("repository") == end.repository]
    kept = [each for each in old if each not in own]
    success = next((each.value for each in own if each.name == LAST_SUCCESS), None)
    registry = CollectorRegistry()
    gauges = {
        name: Gauge(
            name,
            text,
            ["repository", "outcome"] if name == OUTCOME else ["repository"],
            registry=registry,
        )
        for name, text in FAMILIES.items()
    }
    for sample in [*kept, *samples_of(end, success)]:
        gauges[sample.name].labels(**dict(sample.labels)).set(sample.value)
    write_to_textfile(str(path), registry)


def _read_metrics(path: Path) -> list[RunSample]:
    """Returns the samples of a file that an earlier run wrote. Other metrics are not kept."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [
        RunSample(sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in FAMILIES
    ]


def signature_of(body: bytes, secret: str) -> str:
    """Returns the value of SIGNATURE_HEADER: HMAC-SHA-256 of the body (RFC 2104), in hex after
    `sha256=`."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def post(
    url: str,
    secret: str | None,
    end: RunEnd,
    *,
    pauses: Sequence[float] = PAUSES_SECONDS,
    seconds_max: float = TOTAL_SECONDS_MAX,
) -> str | None:
    """Posts the end of a run, signed.

    Returns a warning if no try succeeded within `seconds_max`, else None.

    A try succeeds if the answer's status is 2xx. A failed connection, 429 and 5xx are tried again,
    with the same value of DELIVERY_HEADER; any other answer is final. Redirects are not followed.
    """
    body = json.dumps(end.to_json()).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"ebbtide/{version('ebbtide')}",
        DELIVERY_HEADER: secrets.token_hex(16),
    }
    if secret is not None:
        headers[SIGNATURE_HEADER] = signature_of(body, secret)
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    stopped = threading.Event()
    found: list[str | None] = []
    # A thread, because neither the lookup of a host nor a slow answer has a limit of its own.
    thread = threading.Thread(
        target=lambda: found.append(_tried(request, pauses, stopped.wait)), daemon=True
    )
    thread.start()
    thread.join(seconds_max)
    stopped.set()
    reason = found[0] if found else f"no answer within {seconds_max:g} seconds"
    if reason is None:
        return None
    # The path of a webhook is often its secret.
    return f"the webhook at {urlsplit(url).hostname} was not told of this run: {reason}"


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    is_final: bool


def _tried(
    request: urllib.request.Request, pauses: Sequence[float], wait: Callable[[float], Any]
) -> str | None:
    """Posts until a try succeeds or fails for good. Returns the last reason, or None."""
    failure = _try(request)
    for pause in pauses:
        if failure is None or failure.is_final or wait(pause):
            break
        failure = _try(request)
    return None if failure is None else failure.reason


def _try(request: urllib.request.Request) -> _Failure | None:
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=TRY_SECONDS_MAX):
            return None
    except urllib.error.HTTPError as error:
        with error:
            is_final = error.code != 429 and error.code < 500
            return _Failure(f"it answered with status {error.code}", is_final)
    except urllib.error.URLError as error:
        return _Failure(str(error.reason), is_final=False)
    except OSError as error:
        return _Failure(str(error) or type(error).__name__, is_final=False)
    except HTTPException as error:
        # Its text can have the path of the address.
        return _Failure(type(error).__name__, is_final=False)


def start_hook(line: str, end: RunEnd, *, seconds_max: float = HOOK_SECONDS_MAX) -> str | None:
    """Starts the program of a line, with the end as JSON on its stdin, and waits for its end.

    Returns a warning if it did not start, failed, or was not finished within `seconds_max` and was
    killed; else None.

    The program gets the environment of this process. What it prints goes to stderr, because stdout
    is for the answer of a command.
    """
    arguments = shlex.split(line)
    try:
        started = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=STDERR,
            # A group of its own, so that its children end with it.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"the hook {arguments[0]} did not start: {error}"
    try:
        started.communicate(json.dumps(end.to_json()).encode(), timeout=seconds_max)
    except subprocess.TimeoutExpired:
        return f"the hook {arguments[0]} took longer than {seconds_max:g} seconds, and was ended"
    finally:
        if started.returncode is None:
            _kill(started)
    if started.returncode:
        return f"the hook {arguments[0]} ended with exit code {started.returncode}"
    return None


def _kill(started: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
