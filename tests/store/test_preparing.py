"""What is uncommitted: read at once, and read in pages while everything moves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from ebbtide.errors import EbbtideError
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc import uncommitted as protected
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import new_id
from ebbtide.storage import open_storage
from ebbtide.store.content.layout import DATA_PREFIX, TREES_PREFIX
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import (
    copies,
    pending,
    readings,
    upload_tokens,
)
from ebbtide.store.embedded import Store
from ebbtide.store.gc import uncommitted as relation
from ebbtide.store.gc.exports import Uncommitted
from ebbtide.store.gc.uncommitted import (
    PHASES,
    STAGED,
    dropped,
    uncommitted,
    uncommitted_among,
    untraced,
)
from ebbtide.store.reclaimer import Reclaimer, referenced, take_apart
from ebbtide.store.refs.ref_rows import list_branches, update_branch
from ebbtide.store.repository import Repository
from ebbtide.store.staging.pending_writes import publish_writes, register_writes
from ebbtide.store.staging.staged_rows import write_staged
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import count, link, meanwhile, seal
from tests.support.locks import waits_for_a_lock
from tests.support.randomized import randomized
from tests.support.reachable import committed, staged_live

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
WAIT_SECONDS_MAX = 60.0
RowsRead = list[dict[str, Any]]  # of UNCOMMITTED_SCHEMA


def whole(lake: Repository, among: Sequence[str] | None = None, *, scans: bool = False) -> RowsRead:
    context = lake.context
    with context.metadata.snapshot(scans=scans) as tx:
        arguments: dict[str, Any] = {"now": tx.now(), "trash_time": context.trash_time}
        if among is None:
            tables = uncommitted(tx, context.repository_id, **arguments)
        else:
            batches = (among[start : start + 2] for start in range(0, len(among), 2))
            tables = uncommitted_among(tx, context.repository_id, batches, **arguments)
        return [row for table in tables for row in table.to_pylist()]


def pages(lake: Repository, *, rows_max: int) -> Iterator[pa.Table]:
    reading = Uncommitted(lake.context)
    page = reading.page(rows_max=rows_max)
    yield page.table
    while page.next_continuation is not None:
        page = reading.page(page.next_continuation, rows_max=rows_max)
        yield page.table


def addresses(rows: RowsRead, reason: str | None = None) -> list[str]:
    return [row["address"] for row in rows if reason in (None, row["reason"])]


def register(lake: Repository, address: str, *, lasts: timedelta) -> None:
    with lake.context.metadata.transaction() as tx:
        register_writes(tx, lake.info.repository_id, [address], write_ttl=lasts)


@pytest.mark.twins
def test_what_is_read_and_in_which_order(repository: Repository, clock: ManualClock) -> None:
    def at(number: int) -> Any:
        return clock.now + number * SECOND

    context = repository.context
    settings = context.settings
    start = clock.now
    repository.branches.create("dev", "main")
    register(repository, "data/written", lasts=settings.write_ttl)
    clock.now = start + SECOND
    promised = repository.addresses.get("main", "p")
    clock.now = start + 2 * SECOND
    sealed = repository.objects.put("dev", "s", b"1")
    seal(repository, "dev")
    clock.now = start + 3 * SECOND
    on_top = repository.objects.put("dev", "s", b"2")
    repository.objects.put("main", "gone", b"")
    repository.objects.delete("main", "gone")
    reading = Uncommitted(context)
    first = reading.page(rows_max=1)  # while one is under way, copies are kept
    clock.now = start + 4 * SECOND
    copied = repository.objects.copy("dev", "t", "dev", "s")
    assert copied.address == on_top.address
    rows = whole(repository)
    clock.now = start
    expected = [
        ("data/written", "write in progress", at(0) + settings.write_ttl, at(0)),
        (promised.address, "upload token", promised.expires_at, at(1)),
        (sealed.address, "staged", None, at(2)),
        (on_top.address, "staged", None, at(3)),
        (on_top.address, "staged", None, at(4)),
        (on_top.address, "copy", None, at(4)),
    ]
    found = [tuple(row.values()) for row in rows]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    order = ["write in progress", "upload token", "staged", "copy"]
    assert sorted(found, key=lambda row: order.index(row[1])) == found
    assert first.table.to_pylist() == rows[:1]


def test_what_lies_elsewhere_is_left_out(store: Store, repository: Repository) -> None:
    """Outside the root, or in another repository."""
    other = store.create_repository("pond", storage_url=f"memory:{new_id()}")
    theirs = other.objects.put("main", "a", b"1").address
    assert addresses(whole(other)) == [theirs]
    assert paged(other, rows_max=5) == {theirs}
    repository.addresses.stage("main", "a", "s3://bucket/a", size_bytes=1)
    mine = repository.objects.put("main", "b", b"1")
    repository.addresses.stage("main", "c", "file:///data/c", size_bytes=1)
    assert addresses(whole(repository)) == [mine.address]
    read = [table.num_rows for table in pages(repository, rows_max=1)]
    assert (sum(read), max(read)) == (1, 1)
    repository.commits.commit("main", "")
    assert whole(repository) == []
    assert [table.num_rows for table in pages(repository, rows_max=10)] == [0]


def test_branches_in_the_trash_count_until_they_are_gone(
    repository: Repository, clock: ManualClock
) -> None:
    """In a reading, those that were gone when it began are left out."""
    register(repository, "data/written", lasts=timedelta(hours=1))
    promised = repository.addresses.get("main", "a").address
    assert addresses(whole(repository)) == ["data/written", promised]
    clock.advance(timedelta(hours=1))
    assert whole(repository) == []
    repository.branches.create("old", "main")
    sealed = repository.objects.put("old", "a", b"1")
    seal(repository, "old")
    on_top = repository.objects.put("old", "b", b"1")
    main = repository.objects.put("main", "a", b"1")
    repository.branches.delete("old")
    everything = {sealed.address, on_top.address, main.address}
    clock.advance(repository.context.trash_time - SECOND)
    assert set(addresses(whole(repository))) == everything
    assert paged(repository, rows_max=1) == everything
    reading = Uncommitted(repository.context)
    page = reading.page(rows_max=1)
    rows = page.table.to_pylist()
    clock.advance(2 * SECOND)
    assert set(addresses(whole(repository))) == {main.address}
    assert paged(repository, rows_max=1) == {main.address}
    rows += reading.page(page.next_continuation, rows_max=9).table.to_pylist()
    assert set(addresses(rows)) == everything


def paged(lake: Repository, *, rows_max: int) -> set[str]:
    return {row["address"] for table in pages(lake, rows_max=rows_max) for row in table.to_pylist()}


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_each_statement_reads_an_index_in_its_order(repository: Repository) -> None:
    """No row is sorted, and no row before a position is read.

    PostgreSQL chooses by the size of the tables, which are empty here.
    """
    literal = {"literal_binds": True}
    with repository.context.metadata.snapshot() as tx:
        for phase in PHASES:
            query = phase.select("id")
            paged = query.where(sa.tuple_(*phase.key) > sa.tuple_(*(["x"] * len(phase.key))))
            for each, bound in ((query, ""), (paged, ">")):
                text = each.compile(dialect=sqlite.dialect(), compile_kwargs=literal)
                found = tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()
                assert len(found) == 1, found
                assert found[0].detail.startswith(f"SEARCH {phase.table.name} USING"), found
                assert bound in found[0].detail, found


READS_BY_ADDRESS: dict[str, Callable[[Transaction, Repository], object]] = {
    "few": lambda tx, lake: read_among(tx, lake, ["data/1"]),
    "many": lambda tx, lake: read_among(tx, lake, [f"data/{n}" for n in range(1000)]),
    "shared": lambda tx, lake: referenced(tx, lake.context.repository_id, ["data/1"]),
}


def read_among(tx: Transaction, lake: Repository, among: list[str]) -> list[pa.Table]:
    trash_time, repository_id = lake.context.trash_time, lake.context.repository_id
    now = tx.now()
    return list(uncommitted_among(tx, repository_id, [among], now=now, trash_time=trash_time))


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_addresses_are_asked_for_by_an_index(repository: Repository) -> None:
    """The sweep asks about its candidates among millions of staged entries.

    PostgreSQL chooses by the size of the tables, which are empty here.
    """
    repository.objects.put("main", "a", b"1")  # of an empty table nothing is asked
    plans: list[str] = []

    def explain(
        connection: sa.Connection, _cursor: Any, statement: str, parameters: Any, *_more: Any
    ) -> None:
        if "FROM staged" in statement and not statement.startswith("EXPLAIN"):
            found = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row.detail for row in found)

    for name, read in READS_BY_ADDRESS.items():
        plans.clear()
        with repository.context.metadata.snapshot() as tx:
            sa.event.listen(tx.connection, "before_cursor_execute", explain)
            read(tx, repository)
            sa.event.remove(tx.connection, "before_cursor_execute", explain)
        assert any("ix_staged_address" in detail for detail in plans), (name, plans)


def named(lake: Repository, read: Callable[..., Iterator[pa.Table]], **options: Any) -> set[str]:
    with lake.context.metadata.snapshot() as tx:
        tables = read(tx, lake.context.repository_id, **options)
        return {row["address"] for table in tables for row in table.to_pylist()}


def test_what_is_dropped_is_named_until_it_was_reclaimed(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    def told() -> set[str]:
        now, trash_time = clock.host_now(), repository.context.trash_time
        return named(repository, dropped, now=now, trash_time=trash_time)

    repository.branches.create("old", "main")
    branch = repository.objects.put("old", "a", b"1").address
    lost = {repository.objects.put("main", path, b"1").address for path in "abc"}
    repository.objects.put("main", "kept", b"1")
    assert told() == set()
    repository.objects.put("main", "a", b"2")
    repository.objects.delete("main", "b")
    repository.commits.reset_prefix("main", "c")
    assert told() == lost
    repository.branches.delete("old")
    assert told() == lost
    clock.advance(repository.context.trash_time)
    assert told() == lost | {branch}
    repository.commits.reset("main")
    with repository.context.metadata.transaction() as tx:
        while take_apart(tx, lease_ttl=repository.context.settings.lease_ttl, amount=1) is not None:
            pass
    assert len(told()) == len(lost) + 3
    clock.advance(repository.context.settings.lease_ttl)
    while Reclaimer(store).once().deleted_count:
        pass
    assert told() == {branch}


def test_what_need_not_be_named(repository: Repository) -> None:
    """Writes, tokens, and entries whose address a commit has: those end without a trace."""
    repository.objects.put("main", "a", b"1")
    assert named(repository, untraced) == set()
    register(repository, "data/written", lasts=timedelta(hours=1))
    promised = repository.addresses.get("main", "b").address
    assert named(repository, untraced) == {"data/written", promised}
    shared = repository.objects.put("main", "c", b"1").address
    late = meanwhile(repository, lambda: repository.objects.copy("main", "d", "main", "c"))
    late.commits.commit("main", "")
    assert named(repository, untraced) == {"data/written", promised, shared}


def test_protected_addresses_are_written_in_parts(
    store: Store, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.addresses.get("main", "p")
    for name in "abc":
        repository.objects.put("main", name, b"1")
    folder = RunFolder(open_storage(str(tmp_path / "run")), "")
    lake = EmbeddedRepository(repository.context, store_id=store.store_id)
    for name, rows_max, expected in (("one", 9, [4]), ("more", 2, [1, 3])):
        monkeypatch.setattr(protected, "PROTECTED_ROWS_PER_PART", rows_max)
        with lake.reading() as reading:
            parts = list(protected.write_protected(folder, reading.protected(), name=name))
        assert [part.rows for part in parts] == expected, "tables are not cut"


ODD: Final = ('"', "\\", "\n", "\x01", ",", "é", "\U0001f40b", "%0a")


@pytest.mark.twins
@randomized("changes between pages")
def test_the_pages_are_the_whole(
    store: Store, clock: ManualClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address may have many rows, and rows are taken in pieces. Addresses of all characters are
    among them. SQLite reads the rows in pages if there are several readers."""
    rng = random.Random(seed)
    monkeypatch.setattr(relation, "ROWS_PER_TABLE", rng.choice((1, 2, 5, 1000)))
    repository = empty_repository(store)
    shared = repository.objects.put("main", "a", b"1").address
    for path in "ef":
        repository.objects.copy("main", path, "main", "a")
    another = Uncommitted(repository.context)
    first = another.page(rows_max=1)  # for as long as this one is under way copies are kept
    for _ in range(25):
        with suppress(EbbtideError):
            random_change(repository, rng)
        clock.advance(SECOND)
    for number, odd in enumerate(ODD):
        repository.addresses.stage("main", f"b{number}", f"s3://bucket/{odd}", size_bytes=1)
    expected = whole(repository)
    assert sorted(whole(repository, scans=True), key=repr) == sorted(expected, key=repr)
    for rows_max in (1, 2, rng.randrange(3, 8), 1000):
        read = [table.to_pylist() for table in pages(repository, rows_max=rows_max)]
        assert all(len(rows) <= rows_max for rows in read)
        assert [row for rows in read for row in rows] == expected
    known = sorted(set(addresses(expected)))  # one may be there for two reasons
    asked = [shared, "data/nowhere", "dätä/'\"\\\n", *rng.sample(known, len(known) // 2)]
    asked = [*dict.fromkeys(asked)]
    some = [
        row | ({"created_at": None} if row["reason"] == STAGED.reason else {})
        for row in expected
        if row["address"] in asked
    ]
    assert sorted(whole(repository, asked), key=repr) == sorted(some, key=repr)
    assert whole(repository, []) == []
    assert another.page(first.next_continuation, rows_max=1000).next_continuation is None
    assert count(repository, readings) == count(repository, copies) == 0


def empty_repository(store: Store) -> Repository:
    return store.create_repository(f"lake-{new_id()[:8]}", storage_url=f"memory:{new_id()}")


def random_change(lake: Repository, rng: random.Random) -> None:
    """One operation of those that change what is uncommitted."""
    branch, path, other = rng.choice(["main", "dev", "odd"]), rng.choice("abcd"), rng.choice("wxyz")
    operations: dict[str, tuple[int, Callable[[], object]]] = {
        "put": (6, lambda: lake.objects.put(branch, path, rng.randbytes(4))),
        "rename": (4, lambda: (lake.objects.copy(branch, other, branch, path), path)),
        "delete": (3, lambda: lake.objects.delete(branch, rng.choice([path, other]))),
        "promise": (1, lambda: lake.addresses.get(branch, path)),
        "link": (2, lambda: link(lake, branch, path)),
        "import": (1, lambda: lake.addresses.stage(branch, path, "s3://b/k", size_bytes=1)),
        "write": (1, lambda: register(lake, f"data/{new_id()}", lasts=timedelta(hours=1))),
        "commit": (2, lambda: lake.commits.commit(branch, "")),
        "fail": (
            2,
            lambda: lake.commits.commit(branch, "", date=lake.context.clock.host_now() + DAY),
        ),
        "create": (4, lambda: lake.branches.create(branch, "main")),
        "trash": (1, lambda: lake.branches.delete(branch)),
        "restore": (1, lambda: lake.branches.restore(branch)),
        "reset": (1, lambda: lake.commits.reset(branch)),
        "reset one": (1, lambda: lake.commits.reset_path(branch, path)),
    }
    weights = [weight for weight, _ in operations.values()]
    name = rng.choices(list(operations), weights)[0]
    operations[name][1]()
    if name == "rename":
        lake.objects.delete(branch, path)


def test_pages(store: Store, repository: Repository, clock: ManualClock) -> None:
    for name in "abmz":
        repository.objects.put("main", name, b"1")
    reading = Uncommitted(repository.context)
    for rows_max in (0, -1, 1_000_001):
        with raises("invalid_argument"):
            reading.page(rows_max=rows_max)
    first = reading.page(rows_max=2)
    good = first.next_continuation
    assert good is not None
    # A page may be asked for again.
    again = [reading.page(good, rows_max=2) for _ in range(2)]
    assert again[0].table.equals(again[1].table)
    assert again[0].next_continuation == again[1].next_continuation
    upload_token = repository.addresses.get("main", "a").token
    for bad in ("", "x", good[:-1], good[1:], good + "x", "a.b.c", "\ud800", upload_token):
        with raises("invalid_argument"):
            reading.page(bad, rows_max=1)
    other = store.create_repository("pond", storage_url=f"memory:{new_id()}")
    with raises("invalid_argument"):
        Uncommitted(other.context).page(good, rows_max=1)
    # A whole reading does not end another one.
    moved = repository.objects.copy("main", "0", "main", "z")
    repository.objects.delete("main", "z")
    assert moved.address in paged(repository, rows_max=1)
    clock.advance(repository.context.settings.prepare_ttl - SECOND)
    last = reading.page(good, rows_max=9)
    assert moved.address in addresses(last.table.to_pylist())
    assert last.next_continuation is None
    with raises("reading_ended"):
        reading.page(good, rows_max=2)
    # One that takes too long ends, too.
    reading = Uncommitted(repository.context)
    first = reading.page(rows_max=1)
    clock.advance(repository.context.settings.prepare_ttl)
    with raises("reading_ended"):
        reading.page(first.next_continuation, rows_max=1)


def scene(store: Store) -> Repository:
    """A repository with something in each place."""
    lake = empty_repository(store)
    lake.objects.put("main", "c", b"committed")
    lake.commits.commit("main", "")
    lake.branches.create("dev", "main")
    # Tokens are random, and pages go by them: in one order always.
    with lake.context.metadata.transaction() as tx:
        for row in list(list_branches(tx, lake.info.repository_id)):
            token = ("0" if row.name == "main" else "8") + row.staging_token[1:]
            update_branch(tx, lake.info.repository_id, row.branch_id, staging_token=token)
    lake.objects.put_many("dev", (NewObject(path, path.encode()) for path in "bmy"))
    lake.objects.put("main", "k", b"k")
    lake.storage.put(lake.addresses.get("dev", "l").address, b"uploaded")
    return lake


def held(lake: Repository) -> set[str]:
    """Every object of the repository's own that something needs now, told from the tables."""
    found = committed(lake) | staged_live(lake)
    with lake.context.metadata.snapshot() as tx:
        for table, ends_at in (
            (pending, pending.c.ends_at),
            (upload_tokens, upload_tokens.c.expires_at),
        ):
            mine = table.c.repository_id == lake.info.repository_id
            found.update(
                tx.execute(sa.select(table.c.address).where(mine, ends_at > tx.now())).scalars()
            )
    return {address for address in found if address.startswith(DATA_PREFIX)}


class Pages:
    """A reading in pages, which goes on as far as it is asked."""

    def __init__(self, lake: Repository, *, rows_max: int) -> None:
        self.lake = lake
        self.before = held(lake)
        self.seen: set[str] = set()
        self.count = 0
        self._pages = pages(lake, rows_max=rows_max)

    def read(self, until: float = math.inf) -> None:
        while self.count < until and (table := next(self._pages, None)) is not None:
            self.seen.update(addresses(table.to_pylist()))
            self.count += 1

    def missed(self) -> set[str]:
        """What was there before, is needed in the end, and was in no page and no later commit."""
        self.read()
        return (self.before & held(self.lake)) - self.seen - committed(self.lake)


def rename(lake: Repository, destination: str, source: str) -> None:
    lake.objects.copy("dev", destination, "dev", source)
    lake.objects.delete("dev", source)


def rename_twice(lake: Repository, read: Callable[[], None]) -> None:
    lake.objects.copy("dev", "a", "dev", "m")
    read()
    lake.objects.delete("dev", "m")
    read()
    lake.objects.copy("dev", "z", "dev", "a")


def suspended_link(lake: Repository, read: Callable[[], None]) -> None:
    with lake.context.metadata.snapshot() as tx:
        mine = upload_tokens.c.repository_id == lake.info.repository_id
        address = tx.execute(sa.select(upload_tokens.c.address).where(mine)).scalar_one()
    token = lake.addresses.token_of(f"{lake.storage.url}/{address}")
    meanwhile(lake, read, DATA_PREFIX).addresses.link("dev", "l", token)


def suspended_commit(
    lake: Repository, read: Callable[[], None], change: Callable[[], object]
) -> None:
    def act() -> None:
        read()
        change()
        read()

    meanwhile(lake, act, TREES_PREFIX).commits.commit("dev", "")


MOVEMENTS: Mapping[str, Callable[[Repository, Callable[[], None]], object]] = {
    "suspended put": lambda lake, read: meanwhile(lake, read, DATA_PREFIX).objects.put(
        "dev", "a", b"slow"
    ),
    "rename twice": rename_twice,
    "suspended link": suspended_link,
    "suspended commit, and a rename": lambda lake, read: suspended_commit(
        lake, read, lambda: rename(lake, "a", "m")
    ),
    "suspended commit, and an overwrite": lambda lake, read: suspended_commit(
        lake, read, lambda: lake.objects.put("dev", "m", b"new")
    ),
}
"""By name. Each moves what is staged, and lets pages be read in between."""


@pytest.mark.drawn("movements between pages")
@pytest.mark.parametrize("name", MOVEMENTS)
def test_nothing_is_missed_whatever_happens_between_the_pages(store: Store, name: str) -> None:
    """The pages are read in part before, in between and afterwards, in every way."""
    has_two_steps = "twice" in name or "commit" in name
    rows_max, page_count, points = (2, 4, 3) if has_two_steps else (1, 7, 2)
    for schedule in combinations_with_replacement(range(page_count), points):
        lake = scene(store)
        reading, waiting = Pages(lake, rows_max=rows_max), list(schedule)
        reading.read(waiting.pop(0))
        MOVEMENTS[name](lake, lambda: reading.read(waiting.pop(0)))  # noqa: B023
        assert reading.missed() == set(), schedule
    assert count(lake, readings) == 0


@pytest.mark.twins
def test_a_write_that_is_being_published_as_its_registration_ends(
    repository: Repository, clock: ManualClock
) -> None:
    """The reading waits for it: it is not there any more as a write, and not yet as staged."""
    context = repository.context
    entry = repository.objects.put("main", "a", b"1")
    repository.commits.reset("main")
    register(repository, entry.address, lasts=SECOND)
    register(repository, "data/dead", lasts=SECOND)
    with context.metadata.snapshot() as tx:
        (token,) = (row.staging_token for row in list_branches(tx, context.repository_id))
    with ThreadPoolExecutor(1) as pool:
        with context.metadata.transaction() as tx:
            publish_writes(tx, context.repository_id, [entry.address])
            write_staged(tx, context.repository_id, token, {"a": entry}, lease_ttl=SECOND)
            clock.advance(2 * SECOND)
            page = pool.submit(Uncommitted(context).page, rows_max=1000)
            assert waits_for_a_lock(context.metadata, page)
        rows = page.result(WAIT_SECONDS_MAX).table.to_pylist()
        assert [(row["address"], row["reason"]) for row in rows] == [(entry.address, "staged")]
