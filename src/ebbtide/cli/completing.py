"""Completes names in a shell. Fast and silent. Not for: anything that opens or changes a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

VARIABLE: Final = "_EBBTIDE_COMPLETE"
"""The variable that a shell sets to ask for completions. The name is Typer's."""

Complete = Callable[[typer.Context, str], list[str]]
"""A function of the command line and the beginning of a word. Returns all completions."""

_SQLITE: Final = "sqlite:///"


def _completing(*kinds: str) -> Complete:
    """Returns a completion by the known names of these kinds."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from ebbtide.store.completing import known_names

        database = _database(context)
        if database is None:
            return []
        repository = str(context.params.get("repository") or "")
        now = datetime.now(UTC)
        return [
            name
            for kind in kinds
            for name in known_names(database, kind, incomplete, now=now, repository=repository)
        ]

    return complete


repositories: Final = _completing("repositories")
branches: Final = _completing("branches")
tags: Final = _completing("tags")
refs: Final = _completing("branches", "tags")
runs: Final = _completing("runs")
purges: Final = _completing("purges")
keys: Final = _completing("keys")


def one_of(*words: str) -> Complete:
    """Returns a completion by a few fixed words."""

    def complete(_context: typer.Context, incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _database(context: typer.Context) -> Path | None:
    """Returns the SQLite file of the store that the command line or the environment names."""
    given = context.params.get("store") or context.find_root().params.get("store")
    url = os.environ.get("EBBTIDE_DATABASE_URL")
    if url is not None:
        return Path(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None
    directory = given or os.environ.get("EBBTIDE_STORE")
    from ebbtide.store.completing import DATABASE_FILE

    return None if not directory else Path(directory) / DATABASE_FILE
