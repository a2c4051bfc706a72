"""A Delta table and its collector, for tests: with a clock that stands still, and a policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ebbtide.formats.base import Guard, RepositoryFormat
from ebbtide.formats.capabilities import lost_of
from ebbtide.formats.delta.reading import DeltaGuard
from ebbtide.formats.delta.repository import DeltaRepository
from ebbtide.model import EPOCH
from tests.formats.delta import lake
from tests.formats.delta.replay import Keeping

NOW = 1_790_000_000_123
"""The time of the tests, in milliseconds since 1970."""


def at(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def random_keeping(rng: Random) -> Keeping:
    """A policy that keeps a part of a history of some weeks."""
    return rng.choice(
        (
            Keeping(within=7),
            Keeping(within=rng.choice((1, 2.5, 14)), grace=rng.choice((1, 2, 7))),
            Keeping(last=rng.randrange(1, 4), grace=1),
            Keeping(daily=rng.randrange(1, 4), grace=2),
            Keeping(within=3, daily=4, grace=3),
            Keeping(last=1, holds=tuple(rng.sample(range(12), 2)), grace=1),
            Keeping(last=1, holds=tuple(rng.sample(range(20), 6)), grace=1),
            Keeping(within=2, holds=tuple(range(0, 20, rng.randrange(2, 5)))),
        )
    )


class DeltaLake(lake.DeltaLake):
    """The table at `root`, or all tables below it with `within` = '/**'."""

    def __init__(self, root: Path, keeping: Keeping | None = None, *, within: str = "") -> None:
        """Without a policy of its own, a table has that of its property."""
        super().__init__(root, now_ms=NOW, name=f"delta:{root}{within}")
        self.root, self.within = root, within
        self.grace = timedelta(days=7 if keeping is None else keeping.grace)
        self.options = {"grace": self.grace, "sessions": timedelta(0), "mode": "clean"}
        if keeping is not None:
            place = root / "_ebbtide" / "policy.json"
            place.parent.mkdir()
            place.write_text(json.dumps(keeping.mapping()))

    def log(self) -> dict[str, bytes]:
        """The whole log, with its content."""
        return {
            each: (self.root / each).read_bytes() for each in self.files() if "_delta_log/" in each
        }


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, moment: str, work: Callable[[], None], *, batch: int = 0
) -> None:
    """Lets another program do its work during a sweep in this process, once: just before the guard
    of a batch, just after it, or after the last batch. Batches have two files."""
    calls, done = [0], list[bool]()

    def once() -> None:
        if not done:
            done.append(True)
            work()

    check = DeltaGuard.__call__

    def checked(guard: DeltaGuard, addresses: Any) -> Mapping[str, str]:
        is_turn = calls[0] >= batch
        calls[0] += 1
        if is_turn and moment == "before a batch":
            once()
        found = check(guard, addresses)
        if is_turn and moment == "in a batch":
            once()
        return found

    def looked(repository: RepositoryFormat, guard: Guard) -> str | None:
        if moment == "after the last batch":
            once()
        return lost_of(repository, guard)

    monkeypatch.setattr(DeltaRepository, "batch_max", 2)
    monkeypatch.setattr(DeltaGuard, "__call__", checked)
    monkeypatch.setattr("ebbtide.gc.sweep.lost_of", looked)
