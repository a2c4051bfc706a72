"""Handles Ctrl-C and SIGTERM: the first signal ends the work in order, the second ends it at once.

After `install`, the first signal raises Interrupted in the main thread, or at the end of a block
that is `held`. Python drops an exception that is raised in an object's finalizer; Interrupted is
then raised again. Not for: worker processes, whose parent handles both signals.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
REPEAT_SECONDS: Final = 0.3
"""Signals within this time count as one: the terminal and the parent process can both send it."""

AGAIN_SECONDS: Final = 0.02
"""The delay before a dropped Interrupted is raised again. By then the finalizer has ended."""

_SHOW_CURSOR: Final = b"\x1b[?25h\n"


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end. `exit_code` is the code that shells expect for it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = exit_code(number)


def exit_code(number: int) -> int:
    """Returns the exit code of a process that a signal ended."""
    return 128 + number


class _Interrupts:
    """The signals that this process has received."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.at = 0.0
        self.is_raised = False
        self.blocks_held = 0
        self.otherwise = sys.unraisablehook

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """Handles a signal. Python calls this in the main thread."""
        now = time.monotonic()
        if self.received is None:
            self.received, self.at = number, now
            if not self.blocks_held:
                self.throw()
        elif now - self.at > REPEAT_SECONDS:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            # No cleanup is needed: worker processes end with this one, and the lease of a dead
            # process blocks nobody.
            os._exit(exit_code(number))

    def throw(self) -> None:
        """Raises Interrupted for the received signal, once."""
        if self.received is not None and not self.is_raised:
            self.is_raised = True
            raise Interrupted(self.received)

    def dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Sends the signal again if Python dropped its Interrupted (`sys.unraisablehook`)."""
        if not isinstance(unraisable.exc_value, Interrupted) or self.received is None:
            self.otherwise(unraisable)
            return
        number, self.received, self.is_raised = self.received, None, False
        again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


_heard: Final = _Interrupts()


def install() -> None:
    """Handles the signals from now on. Call it again if another library has replaced the
    handlers."""
    for number in SIGNALS:
        signal.signal(number, _heard.hear)
    if sys.unraisablehook != _heard.dropped:
        _heard.otherwise = sys.unraisablehook
        sys.unraisablehook = _heard.dropped


def is_installed() -> bool:
    """Whether `install` was called in this process, and its handlers were not replaced since."""
    return signal.getsignal(signal.SIGTERM) == _heard.hear


class _OfThread(threading.local):
    """What the present thread has been told of its caller."""

    is_over: threading.Event | None = None


_thread: Final = _OfThread()


@contextmanager
def until(is_over: threading.Event) -> Iterator[None]:
    """In the block, the present thread works for a caller in another thread. When the caller sets
    `is_over`, `check` ends the work."""
    _thread.is_over = is_over
    try:
        yield
    finally:
        _thread.is_over = None


def check() -> None:
    """Raises Interrupted if the caller of this thread has ended (`until`)."""
    if _thread.is_over is not None and _thread.is_over.is_set():
        raise Interrupted(signal.SIGINT)


@contextmanager
def kept() -> Iterator[None]:
    """Raises the interrupt if the block raises another error after it.

    A library can have work to do after an interrupt, such as an orderly end. If this work fails,
    the library raises its own error in place of the interrupt.
    """
    try:
        yield
    except Exception as error:
        before: BaseException | None = error
        while before is not None and not isinstance(before, KeyboardInterrupt):
            before = before.__cause__ or before.__context__
        if before is None:
            raise
        raise before from None


def is_ending() -> bool:
    """Whether a signal was received, so that a second one would end the process at once."""
    return _heard.received is not None


@contextmanager
def held() -> Iterator[None]:
    """Delays Interrupted until the end of the block. In another thread it is that of `check`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        check()
        return
    _heard.blocks_held += 1
    try:
        yield
    finally:
        _heard.blocks_held -= 1
    if not _heard.blocks_held:
        _heard.throw()
