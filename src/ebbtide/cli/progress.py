"""What is going on, on stderr: lines that move on a terminal, a plain line now and then for who
asks for it elsewhere, else nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ebbtide import interrupts
from ebbtide.cli.text import count_text, time_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from ebbtide.gc.meter import Meter, Reading

STEP_TEXT: Final[Mapping[str, str]] = {
    "start": "starting Spark (a few seconds)",
    "check": "checking owner and clocks",
    "list": "listing the storage",
    "read": "reading refs, commits and staged changes",
    "reach": "reading the trees that stay",
    "recall": "recalling what the last run left",
    "mark": "reading the ranges that stay",
    "protect": "reading what stays without a commit",
    "subtract": "finding what nothing needs",
    "presence": "looking whether all that stays is there",
    "fence": "closing the expired commits",
    "recheck": "looking for what came back to life",
    "forget": "dropping the records of commits",
    "count": "counting the outcomes",
    "look": "looking at what is left",
    "wait": "waiting for the tasks of the sweep that broke off",
    "bring back": "bringing back what was moved aside",
    "reopen": "opening the commits again",
    "purge": "deleting for good what was moved aside",
    "walk": "reading what commits need, file by file",
    "compare": "comparing the candidates with the storage",
    "expire": "rewriting the history",
    "explain": "looking for what keeps it",
    "reclaim": "deleting what nobody refers to",
    "objects": "finding what is named",
    "references": "looking for what else refers to it",
    "close": "closing what is named",
    "delete": "deleting what is named",
    "record": "writing the record",
}
"""What each step does, by its name; those named `delete KIND` are told apart below."""

LINE_SECONDS: Final = 5.0
"""A plain line comes so often at most."""
DRAWN_PER_SECOND: Final = 4


@dataclass(slots=True)
class Step:
    """One step as it is shown. Its `reading` is None where nothing is counted."""

    name: str
    text: str
    started: float
    reading: Reading | None = None
    ended: bool = False

    @property
    def line(self) -> str:
        """What it does, and how far it has come."""
        figures = reading_text(self.reading, ended=self.ended)
        return f"{self.text}: {figures}" if figures else self.text


class StepProgress:
    """Shows the steps of a run as they start and end; an observer of the collector's, and of what
    else has steps. `steps` are those so far."""

    def __init__(self, *, quiet: bool, verbose: bool = False) -> None:
        self.steps: list[Step] = []
        self.moves_aside = False
        self._meter: Meter | None = None
        self._begun = 0
        self._lock = Lock()
        self._display: _Drawn | _Lines | None = None
        self._draws = sys.stderr.isatty() and (not quiet or verbose)
        self._prints = verbose and not self._draws

    def watch(self, meter: Meter) -> None:
        """Show what is counted there with the steps."""
        self._meter = meter

    def __call__(self, step: str, event: str) -> None:
        """Start or end a step."""
        if event == "start":
            self._start(step)
            return
        self.refresh()
        for each in reversed(self.steps):
            # Spark may start within another step.
            if not each.ended and step in ("", each.name):
                each.ended = True
                if self._display is not None:
                    self._display.ended(each)
                break

    def notice(self, step: str) -> None:
        """As the end of the step before and the start of this one, for who tells of starts only."""
        self("", "end")
        self(step, "start")

    def _start(self, name: str) -> None:
        doing = "moving aside" if self.moves_aside else "deleting"
        text = STEP_TEXT.get(name, name.replace("delete ", f"{doing} files of kind "))
        with self._lock:
            self._begun = 0 if self._meter is None else self._meter.begun
            self.steps.append(Step(name, text, time.monotonic()))
        if self._display is None and (self._draws or self._prints):
            self._display = _Drawn(self) if self._draws else _Lines(self)
        if self._display is not None:
            self._display.added(self.steps[-1])

    def refresh(self) -> None:
        """Take the count of the step that is going on."""
        with self._lock:
            step, meter = self.current, self._meter
            if step is not None and meter is not None and meter.begun != self._begun:
                step.reading = meter.reading()

    @property
    def current(self) -> Step | None:
        """The step that is going on; None between two."""
        return next((step for step in reversed(self.steps) if not step.ended), None)

    def reached(self, name: str) -> Step | None:
        """The newest step whose name begins so, as far as it has come; None without one."""
        self.refresh()
        return next((step for step in reversed(self.steps) if step.name.startswith(name)), None)

    def pause(self) -> None:
        """Leave the lines as they are, for a question or the end; the next step starts anew."""
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


def reading_text(reading: Reading | None, *, ended: bool = False) -> str:
    """`1,200 of 5,000 files, 300 a second, 0:12 left`, as far as that is known."""
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
    """A plain line of the step that is going on: at once, then every LINE_SECONDS."""

    def __init__(self, progress: StepProgress) -> None:
        self._progress = progress
        self._stopped = Event()
        self._thread = Thread(target=self._go_on, daemon=True)

    def added(self, step: Step) -> None:
        """The first is told of at once."""
        if not self._thread.is_alive():
            self._tell(step)
            self._thread.start()

    def ended(self, step: Step) -> None:
        """The next line is of another."""

    def stop(self) -> None:
        """No more lines."""
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
    """A line for each step, with how far it has come and since when."""

    def __init__(self, progress: StepProgress) -> None:
        self._progress = progress
        self._drawn = _steps(_console())
        self._tasks: dict[int, TaskID] = {}
        self._drawn.start()

    def added(self, step: Step) -> None:
        """One more line."""
        self._tasks[id(step)] = self._drawn.add_task("", total=1, line=self._line_of(step))

    def ended(self, step: Step) -> None:
        """Its line is ticked off."""
        if id(step) in self._tasks:
            self._drawn.update(self._tasks[id(step)], completed=1)

    def _line_of(self, step: Step) -> Any:  # called without arguments, for the text
        def line() -> str:
            if step.ended:
                return step.line
            self._progress.refresh()
            ending = "ending (Ctrl-C again: at once): " if interrupts.is_ending() else ""
            return ending + step.line

        return line

    def stop(self) -> None:
        """Leave the lines as they are."""
        self._drawn.stop()
        self._drawn.console.file.close()


class Bar:
    """A bar that fills, for work on so many items."""

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
        """One more is done."""
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
    """A console on a copy of stderr, which stays the terminal whatever fd 2 is made to be."""
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
        """The text of a step, asked for whenever it is drawn."""

        def render(self, task: Task) -> Text:
            return Text(task.fields["line"](), no_wrap=True, overflow="ellipsis")

    return Progress(
        SpinnerColumn(finished_text="✓", table_column=Column(no_wrap=True, width=1)),
        # Of what is too wide, only columns that may wrap are narrowed.
        Line(table_column=Column()),
        TimeElapsedColumn(table_column=Column(no_wrap=True, width=7)),
        console=console,
        refresh_per_second=DRAWN_PER_SECOND,
    )
