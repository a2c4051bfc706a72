"""The process from which the server forks its workers.

It has no threads, and has already loaded the modules that a run imports. Not for: what the workers
do (`jobs`, `pages.tables`).
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext


def fork_server() -> ForkServerContext:
    """Returns the context that starts a worker. The fork server itself starts with the first
    worker."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["ebbtide.server.preload"])
    return forks
