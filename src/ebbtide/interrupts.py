"""Ctrl-C and SIGTERM: the first ends what is going on in good order, the second ends it at once.

Where `install` was called, the first of them raises Interrupted in the main thread, behind the end
of a block that is `held`. Python drops what is raised while an object is cleared away: it is raised
again then. Not for: worker processes, which leave both to their parent.
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
"""What comes again so soon is the same: a terminal sends it, and so does whoever started this."""

AGAIN_SECONDS: Final = 0.02
"""By then an object whose clearing away was interrupted is gone."""

_SHOW_CURSOR: Final = b"\x1b[?25h\n"


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end. `exit_code` is what shells expect then."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = exit_code(number)


def exit_code(number: int) -> int:
    """Of a process that a signal ended."""
    return 128 + number


class _Interrupts:
    """What this process has heard."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.at = 0.0
        self.is_raised = False
        self.blocks_held = 0
        self.otherwise = sys.unraisablehook

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal. Python calls this in the main thread."""
        now = time.monotonic()
        if self.received is None:
            self.received, self.at = number, now
            if not self.blocks_held:
                self.throw()
        elif now - self.at > REPEAT_SECONDS:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            # Nothing is cleaned up: worker processes end with this one, and a lease of a process
            # that is gone holds nobody up.
            os._exit(exit_code(number))

    def throw(self) -> None:
        """Raise what was received, once."""
        if self.received is not None and not self.is_raised:
            self.is_raised = True
            raise Interrupted(self.received)

    def dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        """What Python calls with an error that can go no further (`sys.unraisablehook`)."""
        if not isinstance(unraisable.exc_value, Interrupted) or self.received is None:
            self.otherwise(unraisable)
            return
        number, self.received, self.is_raised = self.received, None, False
        again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


_heard: Final = _Interrupts()


def install() -> None:
    """Handle the signals from now on; again, where somebody else took them over meanwhile."""
    for number in SIGNALS:
        signal.signal(number, _heard.hear)
    if sys.unraisablehook != _heard.dropped:
        _heard.otherwise = sys.unraisablehook
        sys.unraisablehook = _heard.dropped


def is_installed() -> bool:
    """Whether `install` was called in this process, and nobody took the signals over since."""
    return signal.getsignal(signal.SIGTERM) == _heard.hear


def is_ending() -> bool:
    """Whether a signal has come, and a second one would end the process at once."""
    return _heard.received is not None


@contextmanager
def held() -> Iterator[None]:
    """What is in the block is brought to its end before it is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _heard.blocks_held += 1
    try:
        yield
    finally:
        _heard.blocks_held -= 1
    if not _heard.blocks_held:
        _heard.throw()
