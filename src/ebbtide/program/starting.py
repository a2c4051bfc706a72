"""Ctrl-C and SIGTERM while the program is imported, which takes half a second. Imports little.

Not for: signals after that (`ebbtide.interrupts`, which replaces the handlers).
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def end_when_interrupted() -> None:
    """Ends the process at a signal from now on, with the exit code that shells expect. No work has
    begun yet that could be left unfinished."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A parent process can have set a signal to be ignored, as `nohup` does.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    # The module that is being imported could catch an exception, also that of a closed stderr.
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(128 + number)
