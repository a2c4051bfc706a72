"""fsspec's own tests of file systems, each in a directory of its own on a branch of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.tests import abstract

from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from tests.filesystem.conftest import new_repositories

pytestmark = pytest.mark.drawn("tests of fsspec")


@pytest.fixture(scope="module")
def shared_fs(shared_store: Path) -> Iterator[EbbtideFileSystem]:
    new_repositories(shared_store, Settings())
    fs = EbbtideFileSystem(str(shared_store), skip_instance_cache=True)
    yield fs
    fs.close()


class _Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]  # fsspec has no types
    @pytest.fixture
    def fs(self, shared_fs: EbbtideFileSystem) -> EbbtideFileSystem:
        return shared_fs

    @pytest.fixture
    def fs_path(self) -> str:
        return f"lake/main/{new_id()}"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(abstract.AbstractCopyTests, _Fixtures):  # type: ignore[misc]
    """Copies within the branch."""


class TestGet(abstract.AbstractGetTests, _Fixtures):  # type: ignore[misc]
    """Copies to the machine's own files."""


class TestPut(abstract.AbstractPutTests, _Fixtures):  # type: ignore[misc]
    """Copies from the machine's own files."""


class TestOpen(abstract.AbstractOpenTests, _Fixtures):  # type: ignore[misc]
    """Modes of files."""


class TestPipe(abstract.AbstractPipeTests, _Fixtures):  # type: ignore[misc]
    """Whole files."""
