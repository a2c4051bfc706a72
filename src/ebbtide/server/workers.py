"""Several processes that serve one store at one socket, and what they share.

Each process is a whole server, as on a machine of its own: they share the database, the storage,
and a directory of this machine that ends with them. Not for: starting and ending the processes,
which uvicorn does, or the files in that directory (`metrics`, `job_files`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from ebbtide import logs
from ebbtide.errors import EbbtideError
from ebbtide.logs import LogLevel
from ebbtide.processes import follow_parent
from ebbtide.resources import limit_arenas
from ebbtide.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

METRICS_PLACE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the directory of the metrics. Their library reads it when it is
imported."""
STARTUP_FAILURE: Final = 3
"""The exit code by which a process tells uvicorn not to start it again."""


@contextmanager
def shared_directory() -> Iterator[Path]:
    """Yields a new directory for the processes of one server."""
    with TemporaryDirectory(prefix="ebbtide-serve-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def show_requests(*, shown: bool) -> None:
    """Lets the log of this process have a line for each request, if `shown`."""
    if shown:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class Worker:
    """Makes the application in each process. It is sent there by pickle."""

    directory: Path | None
    settings: Settings
    shared: Path
    log_level: LogLevel
    access_log: bool

    def __call__(self) -> FastAPI:
        """Returns the application of this process, which ends with its parent. If the store cannot
        be opened, the log says why, and the process ends."""
        follow_parent()
        limit_arenas()
        settings = self.settings
        logs.set_up(settings.log_format, self.log_level, secrets=settings.secrets)
        show_requests(shown=self.access_log)
        os.environ[METRICS_PLACE] = str(self.shared)
        # Imported only now, because the metrics' library reads its variable at the import.
        from ebbtide.server.app import create_app
        from ebbtide.store.embedded import Store

        try:
            return create_app(Store.open(self.directory, settings=settings), self.shared)
        except EbbtideError as error:
            logger.error("%s: %s", error.kind, error.message)
            sys.exit(STARTUP_FAILURE)
