"""The files of jobs. A job writes a file while it works, and every process of the server reads it.

Each line is a JSON array: the seconds of the machine's monotonic clock, a word, and a value. The
server writes the first and the last line, and the process of the job writes those in between. The
files end with the server. Not for: other servers of the store, which know a run from its lease and
its records.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from ebbtide.processes import is_dead, this_process

ENDED_KEPT: Final = 100
"""How many jobs that have ended are kept, of all processes of a server."""
WORKER_DIED: Final = "worker_died"
_SUFFIX: Final = ".jsonl"


@dataclass(slots=True)
class StepState:
    """One step of a job. `seconds` is its duration; None while it runs."""

    step: str
    started: float
    seconds: float | None = None


@dataclass(slots=True)
class Job:
    """One run or look that this server started, as its file tells of it.

    `report` or `error` is set when the job has ended. `found` holds the results of a comparison of
    policies so far, in the form of `reclaimable_json`, the present policy first. `looks_at` is what
    a look computes. `began` is when the job was started, on the monotonic clock of the machine.
    `server` is the process that started it (`this_process`).
    """

    file: JobFile
    repository_id: str
    look_id: str | None
    looks_at: str
    owner: str
    server: str | None
    began: float
    run_id: str | None = None
    found: list[dict[str, Any]] = field(default_factory=list)
    steps: list[StepState] = field(default_factory=list)
    report: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    ended: bool = False

    def take(self, at: float, word: str, value: Any) -> None:
        """Takes one line of the file, after the first."""
        if word == "start":
            self.steps.append(StepState(value, at))
        elif word == "end":
            for step in self.steps:
                if step.step == value and step.seconds is None:
                    step.seconds = at - step.started
        elif word == "found":
            self.found.append(value)
        else:
            setattr(self, word, value)

    def end(self) -> None:
        """Marks the job as ended. If it has no result, its process died."""
        self.ended = True
        if self.report is None and self.error is None:
            is_run = self.look_id is None
            what, todo = ("run", "sweep the run") if is_run else ("computation", "start it")
            message = f"the process of the {what} died: {todo} again"
            self.error = {"kind": WORKER_DIED, "message": message}


@dataclass(frozen=True, slots=True)
class JobFile:
    """The file of one job."""

    path: Path

    @property
    def directory(self) -> Path:
        """A directory for files of the job, which is deleted at its end."""
        return self.path.with_suffix("")

    def tell(self, word: str, value: Any) -> None:
        """Adds a line. The words are `start` and `end` of a step, `found`, and the fields `run_id`,
        `report`, `error` and `ended` of `Job`. A full disk stops no run: then the line is
        missing."""
        with suppress(OSError), self.path.open("a") as file:
            # The line before can lack its end, if its process was killed.
            file.write(f"\n{json.dumps([time.monotonic(), word, value])}\n")

    def read(self) -> Job:
        """Returns the job. A job whose server died has ended with it. Raises FileNotFoundError."""
        (began, _, first), *others = _lines(self.path.read_text())
        job = Job(file=self, began=began, **first)
        for line in others:
            job.take(*line)
        if not job.ended and is_dead(job.server):
            job.end()
        return job

    def end(self) -> Job:
        """Marks the job as ended, after the end of its process; returns it."""
        shutil.rmtree(self.directory, ignore_errors=True)
        job = self.read()
        job.end()
        self.tell("error", job.error)
        self.tell("ended", True)
        return job

    def remove(self) -> None:
        """Deletes the file."""
        self.path.unlink(missing_ok=True)


def read_jobs(directory: Path) -> list[Job]:
    """Returns the jobs whose files are in a directory, the newest first."""
    found = []
    for path in directory.glob(f"*{_SUFFIX}"):
        with suppress(FileNotFoundError):  # another process has deleted it
            found.append(JobFile(path).read())
    return sorted(found, key=lambda job: job.began, reverse=True)


def add_job(
    directory: Path,
    repository_id: str,
    *,
    look_id: str | None = None,
    looks_at: str = "",
    owner: str = "",
) -> JobFile:
    """Makes the file of a new job. Deletes the oldest files of jobs that have ended."""
    for job in [job for job in read_jobs(directory) if job.ended][ENDED_KEPT:]:
        job.file.remove()
    # Programs that clean up directories for temporary files can have deleted it.
    directory.mkdir(parents=True, exist_ok=True)
    file = JobFile(directory / f"{uuid4().hex}{_SUFFIX}")
    first = {"repository_id": repository_id, "look_id": look_id, "looks_at": looks_at}
    part = JobFile(file.path.with_suffix(".part"))
    part.tell("job", first | {"owner": owner, "server": this_process()})
    part.path.rename(file.path)
    return file


def _lines(text: str) -> Iterator[tuple[float, str, Any]]:
    """Yields the lines that are whole. A process can be killed while it writes a line."""
    for line in text.splitlines():
        with suppress(ValueError):
            yield tuple(json.loads(line))
