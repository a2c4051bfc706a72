"""States in which a small world refuses: each is one that a gate, or a check, has to meet."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ebbtide.processes import this_process
from tests.support.small_world import SmallWorld

Spoil = Callable[[SmallWorld, str], object]
"""Spoils the world; most a repository of it."""


ANOTHER: Final = "A" * 43 + "=\n"


def _root(world: SmallWorld, repository: str) -> Path:
    return world.store / "storage" / repository


def _owner(world: SmallWorld, repository: str) -> Path:
    return _root(world, repository) / "_ebbtide" / "OWNER"


def _other_owner(**changes: int | str) -> Spoil:
    def change(world: SmallWorld, repository: str) -> None:
        path = _owner(world, repository)
        content = json.loads(path.read_bytes())
        later = {"epoch": content["epoch"] + 9} if "nonce" in changes else {}
        path.write_text(json.dumps(content | changes | later))

    return change


def _run_in_progress(world: SmallWorld, repository: str) -> None:
    now = int(datetime.now(UTC).timestamp() * 1_000_000)
    world.execute(
        "INSERT OR REPLACE INTO gc_leases (repository_id, run_epoch, run_id, holder, heartbeat_at)"
        " SELECT repository_id, 99, 'f' || hex(randomblob(15)), ?, ?"
        " FROM repositories WHERE name = ?",
        this_process(),
        now,
        repository,
    )


def _ended(ago: timedelta) -> Spoil:
    def end(world: SmallWorld, repository: str) -> None:
        then = int((datetime.now(UTC) - ago).timestamp() * 1_000_000)
        world.execute("UPDATE repositories SET expires_at = ? WHERE name = ?", then, repository)

    return end


def _without(*parts: str) -> Spoil:
    def drop(world: SmallWorld, repository: str) -> None:
        shutil.rmtree(_root(world, repository).joinpath(*parts), ignore_errors=True)

    return drop


def _cut(*parts: str) -> Spoil:
    def cut(world: SmallWorld, repository: str) -> None:
        for path in _root(world, repository).joinpath(*parts).rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut


SPOILED: Final[Mapping[str, Spoil]] = {
    "owned by another store": _other_owner(store_id="0" * 32),
    "a database from a backup": _other_owner(nonce="0" * 16),
    "OWNER is damaged": lambda world, name: _owner(world, name).write_text("{"),
    "no OWNER": lambda world, name: _owner(world, name).unlink(),
    "a run in progress": _run_in_progress,
    "in the trash": _ended(timedelta(seconds=1)),
    "gone": _ended(timedelta(days=30)),
    "no storage": _without(),
    "no trees": _without("_ebbtide", "trees"),
    "damaged trees": _cut("_ebbtide", "trees"),
    "no ranges": _without("_ebbtide", "ranges"),
    "damaged ranges": _cut("_ebbtide", "ranges"),
    "no objects": _without("data"),
    "damaged objects": _cut("data"),
    "no files of runs": _without("_ebbtide", "gc"),
    "damaged files of runs": _cut("_ebbtide", "gc"),
    "no files of purges": _without("_ebbtide", "purges"),
    "damaged files of purges": _cut("_ebbtide", "purges"),
    "no store": lambda world, _: shutil.rmtree(world.store),
    "no secret key": lambda world, _: (world.store / "secret.key").unlink(),
    "another secret key": lambda world, _: (world.store / "secret.key").write_text(ANOTHER),
    "a newer schema": lambda world, _: world.execute(
        "UPDATE alembic_version SET version_num = 9999"
    ),
    "a database that is none": lambda world, _: world.database.write_bytes(b"no database" * 200),
}
