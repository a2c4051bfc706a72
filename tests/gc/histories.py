"""Where random histories in memory happen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.memory_world import Place, open_place


@contextmanager
def fast_place() -> Iterator[Place]:
    with TemporaryDirectory() as directory, open_place(Path(directory)) as made:
        yield made
