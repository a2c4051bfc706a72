"""The program, which is interrupted while it works.

`python -m tests.cli.interrupted WHEN SIGNAL AGAIN SECONDS COMMAND …`. WHEN is `start STEP` or
`end STEP`, where the process signals itself; `done N`, once so many files are deleted; or `never`,
for who does it from outside. AGAIN is after how many seconds a second signal follows, 0 for never:
what is in hands takes longer then. Candidates are deleted one by one, each after SECONDS.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, Final

from ebbtide import cli
from ebbtide.arrow import texts
from ebbtide.cli.progress import StepProgress
from ebbtide.gc import outcomes
from ebbtide.gc.runs import epoch_is_ours
from ebbtide.storage import Storage

LOOK_SECONDS: Final = 0.01
STUCK_SECONDS: Final = 100.0


def main(when: str, number: int, again: float, seconds: float) -> None:
    """Run the program, with this in its way."""
    moment, _, place = when.partition(" ")

    def interrupt() -> None:
        time.sleep(again)
        os.kill(os.getpid(), number)
        if again:
            time.sleep(again)
            os.kill(os.getpid(), number)

    def watch(shown: StepProgress) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            deleting = shown.reached("delete ")
            if deleting and deleting.reading and deleting.reading.done >= int(place):
                break
        interrupt()

    observe = StepProgress.__call__

    def observed(shown: StepProgress, step: str, event: str) -> None:
        observe(shown, step, event)
        if (event, step) == (moment, place):
            interrupt()
        if moment == "done" and (event, step) == ("start", "check"):
            threading.Thread(target=watch, args=(shown,), daemon=True).start()

    def slowly(storage: Storage, *, run_epoch: int, run_id: str) -> bool:
        time.sleep(seconds)
        return epoch_is_ours(storage, run_epoch=run_epoch, run_id=run_id)

    def stuck(column: Any) -> list[str]:  # as `texts` takes it
        time.sleep(STUCK_SECONDS)
        return texts(column)

    if again:
        outcomes.texts = stuck  # type: ignore[attr-defined]
    StepProgress.__call__ = observed  # type: ignore[method-assign, assignment]
    # What tasks are made of goes with them to worker processes.
    outcomes.epoch_is_ours = slowly  # type: ignore[attr-defined]
    outcomes.ADDRESSES_PER_BATCH = 1  # type: ignore[misc]
    cli.main()


if __name__ == "__main__":
    given = sys.argv[1:5]
    sys.argv[1:5] = []
    main(given[0], signal.Signals[given[1]], float(given[2]), float(given[3]))
