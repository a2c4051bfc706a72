"""The history that tests of the collector's gates and crashes start from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.support.copies import OpenedWorld, contents_of, listing
from tests.support.templates import copy_store
from tests.support.world import START, World


@dataclass(frozen=True)
class History:
    """Commits of `main`: `expired` is reached, `cut` is not. The policy keeps a week."""

    expired: str
    opening: str
    middle: str
    head: str
    cut: str

    @property
    def kept(self) -> tuple[str, ...]:
        return (self.opening, self.middle, self.head)


GRACE = timedelta(hours=1)
"""The grace of the worlds' collectors."""

EXPIRED_ONLY = "three"
"""The path whose object only the expired commit has."""


def make_history(world: World) -> History:
    """Candidates of every kind: an object of `expired`, all of `cut`, and a temporary file."""
    world.keep(default="7d")
    world.lake.branches.create("side", "main")
    expired = world.save("main", days_ago=10, put=["one", "two", EXPIRED_ONLY])
    opening = world.save("main", days_ago=8, delete=[EXPIRED_ONLY])
    middle = world.save("main", days_ago=5, put=["four"], delete=["two"])
    head = world.save("main", days_ago=2, put=["five"])
    cut = world.save("side", days_ago=30, put=[f"cut{i}" for i in range(4)])
    world.lake.branches.delete("side")
    world.lake.objects.put("main", "staged", b"staged")
    slice_directory: Path = next((world.root / "data").iterdir())
    (slice_directory / f"{'0' * 32}#77").write_bytes(b"half")
    return History(expired, opening, middle, head, cut)


def kept_contents(world: World, history: History) -> dict[str, dict[str, bytes]]:
    """What the kept commits and the branch, with what is staged on it, hold."""
    return {ref: contents_of(world, ref) for ref in (*history.kept, "main")}


@dataclass(frozen=True)
class Template:
    """A closed store with that history and a plan of it that nobody has swept."""

    directory: Path
    history: History
    run_id: str
    contents: dict[str, dict[str, bytes]]
    files: dict[str, bytes]


def make_template(directory: Path) -> Template:
    world = World(directory)
    history = make_history(world)
    contents = kept_contents(world, history)
    plan = world.collector().plan()
    files = listing(world.root)
    world.close()
    return Template(directory, history, plan.run_id, contents, files)


class PlannedWorld(OpenedWorld):
    def __init__(self, template: Template, directory: Path, **settings: Any) -> None:
        copy_store(template.directory / "store", directory / "store")
        super().__init__(directory, now=START, **settings)
        self.template = template
        self.history = template.history
        self.run_id = template.run_id
