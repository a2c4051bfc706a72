"""What is going on, on stderr, where that is a terminal; nothing anywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

STEP_TEXT: Final[Mapping[str, str]] = {
    "start": "starting Spark (a few seconds)",
    "check": "checking owner and clocks",
    "list": "listing the storage",
    "read": "reading refs, commits and staged changes",
    "reach": "reading the trees that stay",
    "recall": "recalling what the last run left",
    "mark": "reading the ranges that stay",
    "subtract": "finding what nothing needs",
    "fence": "closing the expired commits",
    "recheck": "looking for what came back to life",
    "forget": "dropping the records of commits",
    "count": "counting the outcomes",
}


class StepProgress:
    """Shows the steps of a run as they start and end; an observer of the collector's."""

    def __init__(self, *, quiet: bool) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._quiet = quiet or not sys.stderr.isatty()

    def __call__(self, step: str, event: str) -> None:
        """Start or end the line of a step."""
        if self._quiet:
            return
        if self._progress is None:
            self._progress = _steps(_console())
            self._progress.start()
        if event == "start":
            text = STEP_TEXT.get(step, step.replace("delete ", "deleting files of kind "))
            self._tasks[step] = self._progress.add_task(text, total=1)
        else:
            self._progress.update(self._tasks[step], completed=1)

    def pause(self) -> None:
        """Leave the lines as they are, for a question or the end; the next step starts anew."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.pause()


class Line:
    """One line that says how far work without a known end has come."""

    def __init__(self, *, quiet: bool) -> None:
        self._progress: Progress | None = None
        if not quiet and sys.stderr.isatty():
            self._progress = _steps(_console())

    def show(self, text: str) -> None:
        """Show a text in place of the one before."""
        if self._progress is None:
            return
        if not self._progress.tasks:
            self._progress.start()
            self._progress.add_task(text, total=None)
        self._progress.update(self._progress.tasks[0].id, description=text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


class Bar:
    """A bar that fills, for work on so many items."""

    def __init__(self, text: str, *, total: int, quiet: bool) -> None:
        self._progress: Progress | None = None
        if not quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
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


def _console() -> Console:
    """A console on a copy of stderr, which stays the terminal whatever fd 2 is made to be."""
    from rich.console import Console

    copy = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding)
    return Console(file=copy, force_terminal=True, markup=False, highlight=False)


def _steps(console: Console) -> Progress:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
    )
