"""Starts a program at the end of a run, with the end as JSON on its stdin."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from contextlib import suppress
from typing import Final

from ebbtide.notify.ending import RunEnd

HOOK_SECONDS_MAX: Final = 60
STDERR: Final = 2


def start_hook(line: str, end: RunEnd, *, seconds_max: float = HOOK_SECONDS_MAX) -> str | None:
    """Starts the program of a line, and waits for its end. Returns a warning if it did not start,
    failed, or was not finished within `seconds_max` and was killed; else None.

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
