"""The directory that the processes of one server share, and its places.

Not for: the files there (`metrics`, `job_files`), or the processes (`workers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def shared_directory() -> Iterator[Path]:
    """Yields a new directory for the processes of one server, with a place for each topic."""
    with TemporaryDirectory(prefix="ebbtide-serve-", ignore_cleanup_errors=True) as made:
        shared = Path(made)
        metrics_of(shared).mkdir()
        jobs_of(shared).mkdir()
        yield shared


def metrics_of(shared: Path) -> Path:
    """Returns the directory of the metrics."""
    return shared / "metrics"


def jobs_of(shared: Path) -> Path:
    """Returns the directory of the jobs' states."""
    return shared / "jobs"
