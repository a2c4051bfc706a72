"""What tests of Icechunk repositories share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.icechunk_writer import WriterProcess


@pytest.fixture(scope="session")
def writer_process() -> Iterator[WriterProcess]:
    """The other process, in which writers run."""
    process = WriterProcess()
    yield process
    process.end()
