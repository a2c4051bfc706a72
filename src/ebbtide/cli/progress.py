"""Shows the progress of a command on stderr: moving lines on a terminal, and plain lines elsewhere
if `--verbose` asks for them.

An interrupted command says what it has done, by the steps of its progress.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ebbtide import interrupts
from ebbtide.text import count_text, time_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from ebbtide.gc.steps import Meter, ProgressReading


STEP_TEXT: Final[Mapping[str, str]] = {
    "start": "starting Spark (a few seconds)",
    "check": "checking owner and clocks",
    "list": "listing the storage",
    "read": "reading refs, commits and staged changes",
    "reach": "reading the needed trees",
    "revisit": "looking at what the last run left",
    "mark": "reading the needed ranges",
    "protect": "finding files that are kept without a commit",
    "subtract": "finding files that are not needed",
    "presence": "checking that all needed files exist",
    "fence": "closing the expired commits",
    "recheck": "looking for files that are needed again",
    "forget": "deleting the records of commits",
    "count": "counting the outcomes",
    "look": "listing the files that are left",
    "wait": "waiting for unfinished batches of sweeps",
    "bring back": "restoring files from quarantine",
    "reopen": "opening the commits again",
    "purge": "deleting files in quarantine",
    "walk": "reading the trees and ranges that commits need",
    "compare": "comparing the candidates with the storage",
    "expire": "rewriting the history",
    "explain": "finding what keeps it",
    "reclaim": "deleting objects without a reference",
    "import": "importing objects",
    "objects": "finding the named objects",
    "references": "looking for other references to the named objects",
    "close": "closing the named objects",
    "delete": "deleting the named objects",
    "record": "writing the record",
}
"""The text of each step, by its name. Steps named `delete KIND` get their text below."""

LINE_SECONDS: Final = 5.0
"""The least time between two plain lines."""
DRAWN_PER_SECOND: Final = 4

logger = logging.getLogger(__name__)

SWEPT: Final = (
    "Interrupted after the end of the sweep, which is done. The next sweep deletes the files of "
    "earlier runs whose quarantine has ended"
)
"""The text for a sweep whose report is written."""


@dataclass(slots=True)
class Step:
    """One step as it is shown. Its `reading` is None if nothing is counted."""

    name: str
    text: str
    started: float
    reading: ProgressReading | None = None
    ended: bool = False

    @property
    def line(self) -> str:
        """The text of the step, with its progress."""
        figures = reading_text(self.reading, ended=self.ended)
        return f"{self.text}: {figures}" if figures else self.text


class StepProgress:
    """Shows the steps of a run, or of other work, as they start and end. An `Observer` for the
    collector. `steps` are all steps so far."""

    def __init__(self, *, quiet: bool, verbose: bool = False, logs: bool = False) -> None:
        """`logs` writes each step to the log when it starts and ends, and shows nothing else."""
        self.steps: list[Step] = []
        self.quarantines = False
        self._meter: Meter | None = None
        self._begun = 0
        self._lock = Lock()
        self._display: _Drawn | _Lines | None = None
        self._logs = logs
        self._draws = sys.stderr.isatty() and (not quiet or verbose) and not logs
        self._prints = verbose and not self._draws and not logs

    def watch(self, meter: Meter) -> None:
        """Shows the counts of `meter` with the steps."""
        self._meter = meter

    def __call__(self, step: str, event: str) -> None:
        """Starts or ends a step."""
        if event == "start":
            self._start(step)
            return
        self.refresh()
        for each in reversed(self.steps):
            # Spark can start while another step is open.
            if not each.ended and step in ("", each.name):
                each.ended = True
                if self._logs:
                    seconds = time.monotonic() - each.started
                    logger.info("%s ended after %.3f s", each.line, seconds)
                if self._display is not None:
                    self._display.ended(each)
                break

    def notice(self, step: str) -> None:
        """Ends the present step and starts another, for work that reports only starts."""
        self("", "end")
        self(step, "start")

    def _start(self, name: str) -> None:
        doing = "quarantining" if self.quarantines else "deleting"
        text = STEP_TEXT.get(name, name.replace("delete ", f"{doing} files of kind "))
        with self._lock:
            self._begun = 0 if self._meter is None else self._meter.begun
            self.steps.append(Step(name, text, time.monotonic()))
        if self._logs:
            logger.info("%s", text)
        if self._display is None and (self._draws or self._prints):
            self._display = _Drawn(self) if self._draws else _Lines(self)
        if self._display is not None:
            self._display.added(self.steps[-1])

    def refresh(self) -> None:
        """Updates the count of the present step."""
        with self._lock:
            step, meter = self.current, self._meter
            if step is not None and meter is not None and meter.begun != self._begun:
                step.reading = meter.reading()

    @property
    def current(self) -> Step | None:
        """The present step; None between two steps."""
        return next((step for step in reversed(self.steps) if not step.ended), None)

    def reached(self, name: str) -> Step | None:
        """Returns the newest step whose name begins with `name`, with its progress, or None."""
        self.refresh()
        return next((step for step in reversed(self.steps) if step.name.startswith(name)), None)

    def restart(self) -> None:
        """Forgets all steps, before other work begins whose steps have the same names."""
        self.pause()
        with self._lock:
            self.steps.clear()
            self.quarantines = False

    def pause(self) -> None:
        """Stops the display and leaves its lines, for a question or the end. The next step starts
        it again."""
        self.refresh()
        if self._display is not None:
            self._display.stop()
            self._display = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self("", "end")
        self.pause()


def reading_text(reading: ProgressReading | None, *, ended: bool = False) -> str:
    """Returns the known figures, such as `1,200 of 5,000 files, 300 a second, 0:12 left`. If the
    work waits, returns what it waits for."""
    if reading is not None and reading.awaited and not ended:
        return reading.awaited
    if reading is None or not reading.done:
        return ""
    done, total, unit = count_text(reading.done), reading.total, reading.unit
    if ended or total is None or total < reading.done:
        parts = [f"{done} {unit}"]
    else:
        about = "about " if reading.is_about else ""
        parts = [f"{done} of {about}{count_text(total)} {unit}"]
    if reading.seconds >= 1:
        parts.append(f"{count_text(round(reading.per_second))} a second")
    left = reading.seconds_left
    if not ended and left is not None and reading.seconds >= 1:
        parts.append(f"{time_text(left)} left")
    return ", ".join(parts)


class _Lines:
    """Prints a plain line about the present step: at once, then every LINE_SECONDS."""

    def __init__(self, progress: StepProgress) -> None:
        self._progress = progress
        self._stopped = Event()
        self._thread = Thread(target=self._go_on, daemon=True)

    def added(self, step: Step) -> None:
        """Prints the first step at once."""
        if not self._thread.is_alive():
            self._tell(step)
            self._thread.start()

    def ended(self, step: Step) -> None:
        """Does nothing: the next line is about the next step."""

    def stop(self) -> None:
        """Prints no more lines."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _go_on(self) -> None:
        while not self._stopped.wait(LINE_SECONDS):
            self._progress.refresh()
            step = self._progress.current
            if step is not None:
                self._tell(step)

    def _tell(self, step: Step) -> None:
        print(step.line, file=sys.stderr, flush=True)


class _Drawn:
    """Draws a line for each step, with its progress and its time."""

    def __init__(self, progress: StepProgress) -> None:
        self._progress = progress
        self._drawn = _steps(_console())
        self._tasks: dict[int, TaskID] = {}
        self._drawn.start()

    def added(self, step: Step) -> None:
        """Adds a line for a step."""
        self._tasks[id(step)] = self._drawn.add_task("", total=1, line=self._line_of(step))

    def ended(self, step: Step) -> None:
        """Marks the line of a step as done."""
        if id(step) in self._tasks:
            self._drawn.update(self._tasks[id(step)], completed=1)

    def _line_of(self, step: Step) -> Any:  # a function that returns the text
        def line() -> str:
            if step.ended:
                return step.line
            self._progress.refresh()
            ending = "ending (Ctrl-C again: at once): " if interrupts.is_ending() else ""
            return ending + step.line

        return line

    def stop(self) -> None:
        """Stops drawing, and leaves the lines as they are."""
        self._drawn.stop()
        self._drawn.console.file.close()


class ProgressBar:
    """A progress bar for work on `total` items."""

    def __init__(self, text: str, *, total: int, quiet: bool) -> None:
        self._progress: Progress | None = None
        if not quiet and sys.stderr.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=_console(), transient=True)
            self._task = self._progress.add_task(text, total=total)

    def advance(self) -> None:
        """Adds one item that is done."""
        if self._progress is not None:
            self._progress.advance(self._task)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress.console.file.close()


def _console() -> Console:
    """Returns a console on a copy of stderr. The copy stays the terminal if fd 2 is redirected."""
    from rich.console import Console

    copy = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding)
    return Console(file=copy, force_terminal=True, markup=False, highlight=False)


def _steps(console: Console) -> Progress:
    from rich.progress import (
        Progress,
        ProgressColumn,
        SpinnerColumn,
        Task,
        TimeElapsedColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Line(ProgressColumn):
        """The text of a step, computed each time that it is drawn."""

        def render(self, task: Task) -> Text:
            return Text(task.fields["line"](), no_wrap=True, overflow="ellipsis")

    return Progress(
        SpinnerColumn(finished_text="✓", table_column=Column(no_wrap=True, width=1)),
        # If the line is too wide, only columns that may wrap get narrower.
        Line(table_column=Column()),
        TimeElapsedColumn(table_column=Column(no_wrap=True, width=7)),
        console=console,
        refresh_per_second=DRAWN_PER_SECOND,
    )


def planning_told(progress: StepProgress) -> str:
    """Returns the text for a plan that was not finished."""
    step = progress.current
    doing = "" if step is None else f" while {step.text}"
    return f"Interrupted{doing}: the plan was not finished, and nothing was deleted"


def sweep_told(progress: StepProgress) -> str:
    """Returns the text for a sweep: how much of its work is done."""
    deleting = progress.reached("delete ")
    stays = "Nothing is lost: the plan stays"
    if deleting is None:
        return f"Interrupted before any file was deleted. {stays}"
    done = "quarantined" if progress.quarantines else "deleted"
    return f"Interrupted in the sweep: {share_text(deleting)} {done}. {stays}"


def undo_told(progress: StepProgress) -> str:
    """Returns the text for an undo."""
    moving = progress.reached("bring back")
    share = "0 files" if moving is None else share_text(moving)
    return (
        f"Interrupted in the undo: {share} are restored and stay. The rest is still in quarantine"
    )


def purge_told(progress: StepProgress) -> str:
    """Returns the text for a `gc purge`, which deletes files in quarantine."""
    deleting = progress.reached("purge")
    share = "0 files" if deleting is None else share_text(deleting)
    return f"Interrupted: {share} in quarantine deleted for good. The rest stays in quarantine"


def share_text(step: Step) -> str:
    """Returns the progress of a step, such as `120,000 of 1,000,000 files`."""
    found = step.reading
    if found is None:
        return "0 files"
    if found.total is None or found.total < found.done:
        return count_text(found.done, found.unit.removesuffix("s"))
    return f"{count_text(found.done)} of {count_text(found.total)} {found.unit}"
