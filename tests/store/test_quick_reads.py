"""Reads by one statement: what they find is what the long way finds, and the usual is found."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ebbtide.errors import EbbtideError, Failed
from ebbtide.ids import new_id
from ebbtide.store.access.access_keys import KeyPair, Role, same_as
from ebbtide.store.database.schema import commits
from ebbtide.store.embedded import Store
from ebbtide.store.objects.objects import Readable
from ebbtide.store.quick_reads import QuickRead, in_memory
from ebbtide.store.refs.ref_rows import BRANCHES, TAGS
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.randomized import randomized

PATHS: Final = ("a", "a/b", "b c", "ü%_'\"", "none")
WRITTEN: Final = PATHS[:4]
NAMES: Final = ("main", "dev", "v1", "v2")
DAY: Final = timedelta(days=1)
LATE: Final = timedelta(days=400)


class History:
    """A repository with random refs, commits and staged changes."""

    def __init__(self, store: Store, clock: ManualClock, rng: Random) -> None:
        self.store, self.clock, self.rng = store, clock, rng
        self.name = f"lake-{new_id()}"
        self.lake = store.create_repository(self.name, storage_url=f"memory:{new_id()}")
        for path in WRITTEN[:-1]:
            self.lake.objects.put("main", path, b"first")
        self.commits = [self.lake.commits.commit("main", "").commit_id]
        for _ in range(rng.randrange(10, 60)):
            self.act()

    def act(self) -> None:
        rng, lake, clock = self.rng, self.lake, self.clock
        branch, name, path = rng.choice(NAMES[:2]), rng.choice(NAMES), rng.choice(WRITTEN)
        ends = rng.choice((None, clock.now + DAY))
        acts: dict[str, Callable[[], object]] = {
            "put": lambda: lake.objects.put(branch, path, rng.randbytes(rng.randrange(9))),
            "delete": lambda: lake.objects.delete(branch, path),
            "copy": lambda: lake.objects.copy(branch, path, rng.choice(NAMES), path),
            "commit": lambda: self.commits.append(lake.commits.commit(branch, "").commit_id),
            "seal": lambda: self.seal(branch, path),
            "branch": lambda: lake.branches.create(name, "main", expires_at=ends),
            "tag": lambda: lake.tags.create(name, "main", expires_at=ends),
            "trash": lambda: lake.branches.delete(name),
            "trash tag": lambda: lake.tags.delete(name),
            "close": self.close,
            "wait": lambda: clock.advance(DAY),
        }
        try:
            acts[rng.choice(list(acts))]()
        except (EbbtideError, KeyError):
            return  # it cannot be done now

    def seal(self, branch: str, path: str) -> None:
        """Begins a commit, which fails when what is staged was sealed."""
        self.lake.objects.put(branch, path, b"sealed")
        self.lake.commits.commit(branch, "", date=self.clock.now + LATE)

    def close(self) -> None:
        """As a run's fence does it."""
        mine = commits.c.commit_id == self.rng.choice(self.commits or [""])
        with self.store.metadata.transaction() as tx:
            tx.execute(sa.update(commits).where(mine).values(tombstoned_by="run7"))


def long_way(store: Store, pair: tuple[str, str], place: tuple[str, str, str]) -> Any:
    repository, ref, path = place
    try:
        key = store.keys.authenticate(*pair)
        found = store.repository(repository).objects.open(ref, path)
    except EbbtideError:
        return None
    return key, *seen(found)


def seen(found: Readable) -> tuple[object, ...]:
    commit = found._found.commit
    return found.entry, commit, found._objects._context.info


def is_usual(lake: Repository, ref: str) -> bool:
    """Whether a read that the long way made is one of the usual ones, by what the store lists."""
    context = lake.context
    with context.metadata.snapshot() as tx:
        of_name = [
            row
            for table in (BRANCHES, TAGS)
            for row in table.all(tx, context.repository_id, table.table.c.name == ref)
        ]
    if len(of_name) > 1:
        return False  # which row comes first is chance
    if not of_name:
        return len(ref) == 32
    return of_name[0].expires_at is None and not getattr(of_name[0], "sealed_tokens", ())


@pytest.mark.twins
@randomized("quick reads")
def test_a_find_is_one_of_the_long_way(store: Store, clock: ManualClock, seed: int) -> None:
    rng = Random(seed)
    history = History(store, clock, rng)
    pairs = [keys(store.keys.create(role)) for role in (Role.ADMIN, Role.NONE)]
    revoked = keys(store.keys.create(Role.READER))
    store.keys.revoke(revoked[0])
    pairs += [revoked, (pairs[0][0], pairs[1][1]), ("nobody", "nothing")]
    refs = [*NAMES, "main@", "main~1", "", *history.commits[:3]]
    refs += [each[:8] for each in history.commits[:1]]
    is_trashed = rng.random() < 0.1
    if is_trashed:
        store.catalog.delete(history.name)
    quick = 0
    for _ in range(60):
        pair = rng.choice(pairs) if rng.random() < 0.3 else pairs[0]
        name = history.name if rng.random() < 0.9 else "lake-none"
        place = (name, rng.choice(refs), rng.choice(PATHS))
        wanted = long_way(store, pair, place)
        found = find(store, pair, *place)
        if found is not None:
            quick += 1
            assert (found.key, *seen(found.found)) == wanted, place
        else:
            assert wanted is None or not is_usual(history.lake, place[1]), place
    assert quick == 0 or not is_trashed


def find(store: Store, pair: tuple[str, str], *place: str) -> QuickRead | None:
    return store.quick_reads.find(pair[0], *place, is_right=same_as(pair[1]))


def keys(pair: KeyPair) -> tuple[str, str]:
    return pair.key.access_key_id, pair.secret


@pytest.fixture
def reads(tmp_path: Path) -> Iterator[tuple[Store, Repository]]:
    with Store.init(tmp_path / "store") as store:
        yield store, store.create_repository("lake")


@contextmanager
def unread_by_the_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system has no file in memory."""

    def refuse(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    with monkeypatch.context() as patch:
        patch.setattr("os.preadv", refuse)
        yield


@pytest.mark.disk
def test_bytes_in_memory(reads: tuple[Store, Repository], monkeypatch: pytest.MonkeyPatch) -> None:
    store, lake = reads
    pair = keys(store.keys.create(Role.READER))
    for size in (0, 1, 5000):
        data = bytes(range(256)) * 20
        entry = lake.objects.put("main", "a", data[:size])
        quick = find(store, pair, "lake", "main", "a")
        assert quick is not None
        found = in_memory(quick.found, bytes_max=size)
        assert found is not None and found.entry == entry
        assert b"".join(found.stream()) == data[:size]
        assert b"".join(found.stream(start=1, end=3)) == data[1 : min(3, size)]
        assert size == 0 or in_memory(quick.found, bytes_max=size - 1) is None
        with unread_by_the_disk(monkeypatch):
            assert in_memory(quick.found, bytes_max=size) is None
        file = Path(lake.storage.url.removeprefix("file://")) / entry.address
        file.write_bytes(data[: size + 1])  # longer than its entry says
        assert in_memory(quick.found, bytes_max=size) is None
        file.write_bytes(bytes(size)[: max(size - 1, 0)] + b"x" * (size > 0))
        damaged = in_memory(quick.found, bytes_max=size)
        if size:
            assert damaged is not None
            with pytest.raises(Failed, match="not those that were stored"):
                b"".join(damaged.stream())
        file.unlink()
        assert in_memory(quick.found, bytes_max=size) is None


@pytest.mark.parametrize("text", ["\0", "\ud800"])
def test_what_no_database_can_look_for(reads: tuple[Store, Repository], text: str) -> None:
    store, _ = reads
    pair = keys(store.keys.create(Role.READER))
    for place in ((text, "main", "a"), ("lake", text, "a"), ("lake", "main", text)):
        assert find(store, pair, *place) is None
    assert find(store, (text, "x"), "lake", "main", "a") is None


def test_the_work_is_the_same_for_unknown_keys(reads: tuple[Store, Repository]) -> None:
    """Each time a secret is opened and compared."""
    store, lake = reads
    lake.objects.put("main", "a", b"x")
    known = keys(store.keys.create(Role.READER))[0]
    for key_id, repository in ((known, "lake"), (known, "none"), ("nobody", "lake")):
        opened: list[bytes] = []

        def wrong(secret: bytes, opened: list[bytes] = opened) -> bool:
            opened.append(secret)
            return False

        place = (repository, "main", "a")
        assert store.quick_reads.find(key_id, *place, is_right=wrong) is None
        assert len(opened) == 1


def test_connections_in_use_send_reads_to_a_thread(reads: tuple[Store, Repository]) -> None:
    """The event loop must not wait for a connection, which may wait for the loop."""
    store, _ = reads
    assert store.metadata.answers_at_once()
    with ExitStack() as stack:
        for _ in range(11):
            assert store.metadata.answers_at_once()
            stack.enter_context(store.metadata.snapshot()).now()
        stack.enter_context(store.metadata.snapshot())
        assert not store.metadata.answers_at_once()


def test_a_failing_database_is_told(reads: tuple[Store, Repository]) -> None:
    store, lake = reads
    lake.objects.put("main", "a", b"x")
    pair = keys(store.keys.create(Role.READER))
    with store.metadata.transaction() as tx:
        tx.connection.exec_driver_sql("ALTER TABLE staged RENAME TO gone")
    with pytest.raises(Failed) as refused:
        find(store, pair, "lake", "main", "a")
    assert refused.value.kind == "database_error"
