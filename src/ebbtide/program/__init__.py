"""The program `ebbtide`: its commands put together, the command `serve`, exit codes and errors.

`main` imports the other modules when it is called, because each worker process imports this module
and does not need them. That takes half a second, in which Ctrl-C and SIGTERM end the process at
once; `ebbtide.interrupts` replaces the handlers afterwards. Not for: what a command does
(`ebbtide.cli`).
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """The program `ebbtide`."""
    _end_when_interrupted()

    from ebbtide.imports import leave_algebra_alone, leave_pandas_alone

    leave_algebra_alone()
    leave_pandas_alone()

    from ebbtide.program import app

    app.main()


def _end_when_interrupted() -> None:
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
