"""Statements that are compiled once for all databases of a process.

SQLAlchemy keeps what it compiled with the engine. Tests open a new one for nearly each of them, so
that they would compile nearly all statements again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
import sqlalchemy as sa

_Key = tuple[Any, ...]


class CompiledStatements(dict[_Key, Any]):
    """What was compiled, by the name of the dialect in place of the dialect itself. Each engine
    has one of its own, and those of one name are made alike here."""

    def get(self, key: _Key, default: Any = None) -> Any:
        return super().get(_shared(key), default)

    def __setitem__(self, key: _Key, compiled: Any) -> None:
        super().__setitem__(_shared(key), compiled)


def _shared(key: _Key) -> _Key:
    dialect, *others = key
    return (dialect.name, *others)


COMPILED: Final = CompiledStatements()


@contextmanager
def compiled_once() -> Iterator[None]:
    """Engines that are made in the block share what they compile."""
    made = partial(sa.create_engine, execution_options={"compiled_cache": COMPILED})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sa, "create_engine", made)
        yield
