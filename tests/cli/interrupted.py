"""The program, which is interrupted while it works.

`python -m tests.cli.interrupted WHEN SIGNAL TIMES SECONDS COMMAND …`. WHEN says when the process
signals itself:

- `start STEP` or `end STEP`: there;
- `done N`: when N files are deleted;
- `stuck`: when a worker has a batch that never ends;
- `never`: the caller signals from outside.

TIMES is `once` or `until it ends`. Candidates are deleted one by one, each after SECONDS.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from ebbtide import program
from ebbtide.cli.progress import StepProgress
from ebbtide.gc import deletes
from ebbtide.gc.runs import epoch_is_ours
from ebbtide.storage import Storage

LOOK_SECONDS: Final = 0.01
STUCK: Final = "stuck"
"""A file of this name in the store says that a worker is stuck."""


def main(when: str, number: int, times: str, seconds: float) -> None:
    moment, _, place = when.partition(" ")
    stuck = Path(os.environ["EBBTIDE_STORE"]) / STUCK

    def interrupt() -> None:
        os.kill(os.getpid(), number)
        while times == "until it ends":
            time.sleep(LOOK_SECONDS)
            os.kill(os.getpid(), number)

    def is_time(shown: StepProgress) -> bool:
        if moment == "stuck":
            return stuck.exists()
        deleting = shown.reached("delete ")
        return bool(deleting and deleting.reading and deleting.reading.done >= int(place))

    def watch(shown: StepProgress) -> None:
        while not is_time(shown):
            time.sleep(LOOK_SECONDS)
        interrupt()

    observe = StepProgress.__call__

    def observed(shown: StepProgress, step: str, event: str) -> None:
        observe(shown, step, event)
        if (event, step) == (moment, place):
            interrupt()
        if moment in ("done", "stuck") and (event, step) == ("start", "check"):
            threading.Thread(target=watch, args=(shown,), daemon=True).start()

    def slowly(storage: Storage, *, run_epoch: int, run_id: str) -> bool:
        time.sleep(seconds)
        return epoch_is_ours(storage, run_epoch=run_epoch, run_id=run_id)

    def for_ever(column: Any) -> list[str]:  # as `texts` takes it
        del column
        stuck.touch()
        threading.Event().wait()
        raise AssertionError("unreachable")

    if moment == "stuck":
        deletes.texts = for_ever  # type: ignore[attr-defined]
    StepProgress.__call__ = observed  # type: ignore[method-assign, assignment]
    # What tasks are made of goes with them to worker processes.
    deletes.epoch_is_ours = slowly  # type: ignore[attr-defined]
    deletes.ADDRESSES_PER_BATCH = 1  # type: ignore[misc]
    program.main()


if __name__ == "__main__":
    given = sys.argv[1:5]
    sys.argv[1:5] = []
    main(given[0], signal.Signals[given[1]], given[2], float(given[3]))
