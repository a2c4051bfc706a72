"""A run that holds a repository until its process is killed: a program of `forking`.

It makes the file `held` once it has the lease.
"""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from pathlib import Path

from ebbtide.store.repositories.leases import take_lease
from tests.support.copies import OpenedWorld


def main(store: str, now: str, run_id: str, held: str) -> None:
    context = OpenedWorld(Path(store), now=datetime.fromisoformat(now)).lake.context
    take_lease(
        context.metadata,
        repository_id=context.repository_id,
        run_id=run_id,
        lease_ttl=timedelta(seconds=30),
    )
    Path(held).touch()
    signal.pause()
