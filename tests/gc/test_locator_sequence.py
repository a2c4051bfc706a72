"""Get A, let A go, collect, make B of A's locators: at every position of a run, around every
instant at which something ends, whatever A is and however it is let go.

Source: the Arvados wiki, "Expiring collections", whose example of lost blocks this is. Each order
of the steps has an A of its own, all in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations_with_replacement, product
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ebbtide.errors import Conflict, NotFound
from ebbtide.gc.report import RunReport
from ebbtide.gc.steps import Event
from ebbtide.store.collections.contents import ContentChange, Files, Located
from ebbtide.store.database.schema import collections, commits, pending
from ebbtide.store.staging.uploads import NewObject
from tests.gc.histories import fast_place
from tests.support.memory_world import MemoryWorld, Place
from tests.support.randomized import randomized, sample

LEASE: Final = timedelta(hours=1)
EXPIRY: Final = timedelta(minutes=30)
"""In how long an A ends by itself, where it does."""
SHORT, LONG = LEASE / 4, LEASE * 3
INSTANT: Final = timedelta(microseconds=1)
GRACE: Final = timedelta(seconds=1)

ORDERS_AT_A_TIME: Final = 40
"""Of 220 over all points; the 20 over few points are all gone through."""

Point = tuple[str, Event] | str
POINTS: Final[list[Point]] = [
    "before the run",
    ("list", "end"),
    ("read", "end"),
    ("subtract", "end"),
    "planned",
    ("fence", "end"),
    ("recheck", "end"),
    ("forget", "end"),
    ("delete object", "start"),
    "after the run",
]
FEW_POINTS: Final[list[Point]] = ["before the run", "planned", ("fence", "end"), "after the run"]


class SequenceWorld(MemoryWorld):
    """Where the Bs are put."""

    target_id: str = ""


@dataclass(slots=True)
class Line:
    """One A and what becomes of it. `until` is when its locator ends by the definition."""

    name: str
    world: SequenceWorld
    way: Way
    at: tuple[Point, Point, Point]
    item_id: str = ""
    project_id: str = ""
    ends_at: datetime | None = None
    token: str | None = None
    until: datetime | None = None
    used_at: datetime | None = None
    error: Conflict | None = None
    made_id: str | None = None

    @property
    def data(self) -> bytes:
        """What is in A's file."""
        return self.name.encode()

    def step(self, number: int) -> None:
        """Get, let go, make."""
        (self._get, self._let_go, self._make)[number]()

    def _get(self) -> None:
        if self.ends_at is not None and self.world.now >= self.ends_at:
            with pytest.raises(NotFound):
                self.way.sign(self)
            return
        signed = self.way.sign(self)
        lasts_until = self.world.now + LEASE
        self.until = min(lasts_until, self.ends_at or lasts_until)
        assert signed.expires_at == self.until
        self.token = signed.locator

    def _let_go(self) -> None:
        if self.ends_at is None or self.world.now < self.ends_at:
            self.way.let_go(self)

    def _make(self) -> None:
        if self.token is None:
            return
        lake, self.used_at = self.world.lake, self.world.now
        before = counted(self.world)
        try:
            made = lake.collections.create(
                self.world.target_id,
                f"B of {self.name}",
                ContentChange([Located({"file": self.token})]),
            )
        except Conflict as error:
            self.error = error
            assert counted(self.world) == before, "nothing is half made"
        else:
            self.made_id = made.collection_id

    def end(self) -> None:
        """Nobody has an A any more."""
        if self.item_id:
            with suppress(NotFound):
                self.world.lake.collections.delete(self.item_id)

    def check(self) -> None:
        """B is there and reads back whole, or was refused because the locator had ended."""
        if self.token is None:
            return
        assert self.until is not None
        assert self.used_at is not None
        if self.used_at >= self.until:
            assert self.error is not None
            assert self.error.kind == "token_expired"
            return
        assert self.made_id is not None, self.error
        readable = self.world.lake.collections.open(self.made_id, "file")
        assert b"".join(readable.stream()) == self.data


@dataclass(frozen=True, slots=True)
class Way:
    """What an A is: how it is made, how a locator of it is got, and how it is let go."""

    make: Callable[[Line], None]
    sign: Callable[[Line], Any]
    let_go: Callable[[Line], object]


def counted(world: MemoryWorld) -> tuple[int, ...]:
    """How many collections, commits and registered writes there are."""
    with world.lake.context.metadata.snapshot() as tx:
        return tuple(
            tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (collections, commits, pending)
        )


def make_collection(line: Line) -> None:
    lake = line.world.lake
    line.project_id = line.project_id or line.world.target_id
    made = lake.collections.create(line.project_id, line.name, one_file(line))
    line.item_id = made.collection_id


def make_in_project(line: Line) -> None:
    """In a project of its own."""
    line.project_id = line.world.lake.projects.create(line.name).project_id
    make_collection(line)


def make_version(line: Line) -> None:
    """The file is in a version that is kept, and no more in what there is now."""
    make_collection(line)
    line.world.lake.collections.update(
        line.item_id, ContentChange(replaces=True), keep_version=True
    )


def make_commit(line: Line) -> None:
    """The file is in the commit before the last, and nothing but a branch reaches that."""
    lake, branch = line.world.lake, line.name
    lake.branches.create(branch, "main")
    lake.objects.put(branch, "file", line.data)
    lake.commits.commit(branch, "")
    lake.objects.delete(branch, "file")
    lake.commits.commit(branch, "")


def one_file(line: Line) -> ContentChange:
    return ContentChange([Files([NewObject("file", line.data)])])


def sign_collection(line: Line, *, version: int | None = None) -> Any:
    (signed,) = line.world.lake.collections.locators(line.item_id, version=version).entries
    return signed


def replace_content(line: Line) -> object:
    return line.world.lake.collections.update(line.item_id, ContentChange(replaces=True))


def delete_collection(line: Line) -> object:
    return line.world.lake.collections.delete(line.item_id)


def release_data(line: Line) -> object:
    return line.world.lake.collections.update(line.item_id, replication_desired=0)


WAYS: Final[dict[str, Way]] = {
    "collection": Way(make_collection, sign_collection, delete_collection),
    "expiring": Way(make_collection, sign_collection, delete_collection),
    "project above": Way(
        make_in_project,
        sign_collection,
        lambda line: line.world.lake.projects.delete(line.project_id),
    ),
    "data let go": Way(make_collection, sign_collection, release_data),
    "replaced": Way(make_collection, sign_collection, replace_content),
    "version dropped": Way(
        make_version,
        lambda line: sign_collection(line, version=1),
        lambda line: line.world.lake.collections.drop_version(line.item_id, 1),
    ),
    "version's data let go": Way(
        make_version, lambda line: sign_collection(line, version=1), release_data
    ),
    "older commit": Way(
        make_commit,
        lambda line: line.world.lake.locators.sign_path(f"{line.name}~1", "file"),
        lambda line: line.world.lake.branches.delete(line.name),
    ),
    "upload": Way(
        lambda _: None,
        lambda line: line.world.lake.locators.upload(line.data),
        lambda _: None,
    ),
}


@dataclass(slots=True)
class Sequence:
    """A run, and what users did at each of its points; `jumps` is how far time goes at one."""

    world: SequenceWorld
    lines: list[Line]
    jumps: dict[Point, timedelta] = field(default_factory=dict)
    report: RunReport | None = None

    def run(self) -> None:
        """Plan and sweep, with everything that happens at the points."""
        self.at("before the run")
        planned = self.world.collector(
            observer=self._observe, grace=GRACE, mode="clean", unsafe=True
        ).plan()
        assert planned.state == "planned"
        self.at("planned")
        self.report = self.world.collector(
            observer=self._observe, grace=GRACE, unsafe=True, allow_share=True
        ).sweep(planned.run_id)
        assert self.report.state == "swept"
        self.at("after the run")
        assert not any(any(line.at) for line in self.lines), "every point was met"

    def _observe(self, step: str, event: Event) -> None:
        self.at((step, event))

    def at(self, point: Point) -> None:
        """Time goes on, then every user does what is to be done here, once."""
        jump = self.jumps.pop(point, None)
        if jump is not None:
            self.world.clock.advance(jump)
        for number in range(3):
            for line in self.lines:
                if line.at[number] == point:
                    line.step(number)
        for line in self.lines:
            first, second, third = ("" if each == point else each for each in line.at)
            line.at = (first, second, third)

    def collect(self) -> None:
        """A run that nobody disturbs."""
        report = self.world.collect(grace=GRACE, mode="clean", unsafe=True, allow_share=True)
        assert report.state == "swept"

    def check(self) -> None:
        """All that was made stays, and what nobody needs is gone after the last promise has
        ended."""
        self.collect()
        for line in self.lines:
            line.check()
        for line in self.lines:
            line.end()
        self.world.clock.advance(LEASE + LONG + timedelta(days=2))
        self.collect()
        self.collect()
        for line in self.lines:
            line.check()
        kept = {
            self.world.bucket.objects[f"{self.world.prefix}{address}"].data
            for address in self.world.files("data/")
        }
        needed = {line.data for line in self.lines if line.made_id is not None}
        assert kept == needed


def make_sequence(place: Place, *, trash: timedelta, points: list[Point], way: str) -> Sequence:
    """Lines of a way, one for each of some orders of the three steps over the points, by chance."""
    world = SequenceWorld(
        place, settings={"lease_ttl": LEASE, "trash_time": trash, "range_entries_target": 2}
    )
    # What a branch that is gone leaves behind has expired.
    world.keep(default="1h", branches={"older-*": "7d"})
    world.target_id = world.lake.projects.create("target").project_id
    lines = []
    orders = list(combinations_with_replacement(points, 3))
    for number, at in enumerate(sample(f"orders of {way}", orders, ORDERS_AT_A_TIME)):
        line = Line(f"{way} {number}".replace(" ", "-").replace("'", ""), world, WAYS[way], at)
        lines.append(line)
        line.way.make(line)
    # Garbage of every kind: what the run has to delete, whatever users do.
    garbage = Line("garbage", world, WAYS["replaced"], ("", "", ""))
    make_collection(garbage)
    replace_content(garbage)
    world.clock.advance(2 * LEASE)
    for line in lines:
        if line.way is WAYS["expiring"]:
            line.ends_at = world.now + EXPIRY
            world.lake.collections.update(line.item_id, expires_at=line.ends_at)
    return Sequence(world, lines)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A database for all runs."""
    with fast_place() as made:
        yield made


@pytest.mark.drawn("orders around locators")
@pytest.mark.parametrize("way", WAYS)
def test_orders_at_every_point(place: Place, way: str) -> None:
    """Without a trash, in which everything would be kept."""
    sequence = make_sequence(place, trash=timedelta(0), points=POINTS, way=way)
    sequence.run()
    assert sequence.report is not None
    assert sequence.report.counts["deleted"].objects >= 3
    assert all(line.made_id for line in sequence.lines), "no locator has ended"
    sequence.check()


TRASHES: Final = {"no trash": timedelta(0), "short trash": SHORT, "long trash": LONG}
ENDING: Final = ["collection", "expiring", "project above"]
AROUND: Final = [
    *(("lease", LEASE, trash, way) for trash in TRASHES for way in WAYS),
    *(("expiry", EXPIRY, trash, "expiring") for trash in TRASHES),
    *(("trash", SHORT, "short trash", way) for way in ENDING),
    *(("trash", LONG, "long trash", way) for way in ENDING),
]


@pytest.mark.drawn("ends around locators")
@pytest.mark.parametrize(
    ("end", "span", "trash", "way"), AROUND, ids=[f"{e} {t} {w}" for e, _, t, w in AROUND]
)
@randomized("ends of locators")
def test_around_every_end(
    place: Place, tmp_path: Path, seed: int, end: str, span: timedelta, trash: str, way: str
) -> None:
    """Time goes on at a point of the run, to where a lease, a collection or its trash ends: at two
    of its points, to an instant before that, to it, or to one after. What is there before the run
    is made once."""
    del end
    made = make_sequence(place, trash=TRASHES[trash], points=FEW_POINTS, way=way)
    begin_again = made.world.remember(tmp_path / "before.db")
    for point, off in Random(seed).sample(list(product(FEW_POINTS[1:3], (-1, 0, 1))), 2):
        begin_again()
        sequence = Sequence(made.world, [replace(line) for line in made.lines])
        sequence.jumps[point] = span + off * INSTANT
        sequence.run()
        assert any(line.made_id for line in sequence.lines)
        sequence.check()
