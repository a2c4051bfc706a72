"""A store of its own for each test of the collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.histories import PlannedWorld, Template, make_template
from tests.support.world import World


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A store with one empty repository. The module may have its `SETTINGS` and its policy, `KEEP`.
    If it says so in `AGED_SLICES`, slices are named by the injected clock."""
    asked = vars(request.module)
    aged_slices = asked.get("AGED_SLICES", True)
    made = World(tmp_path, settings=asked.get("SETTINGS"), aged_slices=aged_slices)
    if "KEEP" in asked:
        made.keep(**asked["KEEP"])
    yield made
    made.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """A store with a plan, made once; nobody may change it."""
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def planned(template: Template, tmp_path: Path) -> Iterator[PlannedWorld]:
    world = PlannedWorld(template, tmp_path)
    yield world
    world.close()
