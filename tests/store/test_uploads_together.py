"""Uploads of several threads at once, which are staged in groups: each is answered as if it were
alone, and what is answered is durable."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect

from ebbtide.errors import Conflict, EbbtideError, Failed
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.database.schema import pending, released, staged
from ebbtide.store.embedded import Store
from ebbtide.store.refs.ref_rows import require_branch
from ebbtide.store.repository import Repository
from ebbtide.store.staging.pending_writes import give_up_writes
from ebbtide.store.staging.uploads import OnlyIf
from tests.support.faulty import FaultyStorage, with_storage
from tests.support.lakes import contents, count, every_file, pending_addresses
from tests.support.locks import SECONDS_MAX, waits_for_a_lock
from tests.support.randomized import randomized

Put = Callable[[Repository], Entry]
CREATED: Final = OnlyIf()


def until(is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_ready():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def putting(path: str, data: bytes) -> Put:
    return lambda lake: lake.objects.put("main", path, data)


class Together:
    """Uploads whose bytes are written, and that are then staged: one alone, and the others in one
    group behind it, in their order."""

    def __init__(self, repository: Repository) -> None:
        storage = FaultyStorage(repository.storage, after=self._hold)
        self.late = with_storage(repository, storage)
        self.addresses: list[str] = []
        self._gates: list[threading.Event] = []

    def _hold(self, method: str, address: str) -> None:
        if method == "put" and address.startswith(DATA_PREFIX):
            gate = threading.Event()
            self.addresses.append(address)
            self._gates.append(gate)
            assert gate.wait(SECONDS_MAX)

    def _are_waiting(self, count: int) -> bool:
        return len(self.late.objects._uploads._groups._queues.get("main", ())) == count

    @contextmanager
    def staging(self, *puts: Put) -> Iterator[list[Future[Entry]]]:
        """A block in which the group waits for the branch; it is staged behind the block."""
        context = self.late.context
        with ThreadPoolExecutor(len(puts) + 1) as pool:
            futures: list[Future[Entry]] = []
            for put in (putting("first", b"0"), *puts):
                futures.append(pool.submit(put, self.late))
                until(lambda: len(self._gates) == len(futures))
            with context.metadata.transaction() as tx:
                require_branch(tx, context.repository_id, "main", lock="exclusive")
                self._gates[0].set()
                assert waits_for_a_lock(context.metadata, futures[0])
                for number, gate in enumerate(self._gates[1:], 1):
                    gate.set()
                    until(partial(self._are_waiting, number))
                yield futures[1:]


def outcomes(futures: list[Future[Entry]]) -> list[str]:
    return [getattr(each.exception(SECONDS_MAX), "kind", "") for each in futures]


@pytest.mark.twins
def test_a_group_has_one_commit(store: Store, repository: Repository) -> None:
    commits: list[object] = []
    together = Together(repository)
    with together.staging(*(putting(path, path.encode()) for path in "cab")) as futures:
        assert contents(repository, "main") == {}
        sa.event.listen(store.metadata.engine, "commit", commits.append)
    assert outcomes(futures) == [""] * 3
    assert len(commits) == 1 + 2, "of the block itself, the first upload, and the group"
    assert contents(repository, "main") == {"first": b"0", "a": b"a", "b": b"b", "c": b"c"}
    assert not pending_addresses(repository)


@pytest.mark.twins
def test_nobody_is_answered_before_the_commit(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    commit: Callable[[Any, Any], None] = DefaultDialect.do_commit

    def watched(dialect: Any, connection: Any) -> None:
        seen.extend(each.done() for each in futures)
        commit(dialect, connection)

    with Together(repository).staging(putting("a", b"1"), putting("b", b"2")) as futures:
        monkeypatch.setattr(DefaultDialect, "do_commit", watched)
    assert outcomes(futures) == ["", ""]
    assert seen.count(False) >= 4
    assert not any(seen)


@pytest.mark.twins
def test_of_two_at_one_path_the_later_is_shown(repository: Repository) -> None:
    """The other one is released, as if it had been replaced."""
    together = Together(repository)
    with together.staging(*(putting("a", data) for data in (b"1", b"22", b"333"))) as futures:
        pass
    assert outcomes(futures) == [""] * 3
    assert contents(repository, "main")["a"] == b"333"
    assert [each.result().address for each in futures] == together.addresses[1:]
    with repository.context.metadata.snapshot() as tx:
        found = tx.execute(sa.select(released.c.address, released.c.size_bytes))
        assert dict(map(tuple, found)) == dict(zip(together.addresses[1:3], (1, 2), strict=True))


@pytest.mark.twins
def test_a_registration_that_ended_fails_one_upload(repository: Repository) -> None:
    """The others are staged."""
    together, context = Together(repository), repository.context
    groups = together.late.objects._uploads._groups
    work = groups._work

    def ending(branch: str, items: Any) -> Any:
        with context.metadata.transaction() as tx:
            give_up_writes(tx, context.repository_id, [together.addresses[2]])
        return work(branch, items)

    with together.staging(*(putting(path, b"1") for path in "abc")) as futures:
        groups._work = ending
    assert outcomes(futures) == ["", "write_expired", ""]
    assert contents(repository, "main") == {"first": b"0", "a": b"1", "c": b"1"}
    assert not pending_addresses(repository)


@pytest.mark.twins
def test_conditions_are_checked_for_each(repository: Repository) -> None:
    """Of many that may only make a new object, one does. A protected branch takes none."""
    repository.branches.create("closed", "main")
    repository.protection.add("closed")
    start = threading.Barrier(8)

    def put(number: int) -> Entry:
        start.wait(SECONDS_MAX)
        branch = "closed" if number == 0 else "main" if number < 7 else "none"
        only_if = CREATED if 0 < number < 4 else None
        path = "a" if only_if else f"{number}"
        return repository.objects.put(branch, path, str(number).encode(), only_if=only_if)

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(put, number) for number in range(8)]
    found = outcomes(futures)
    assert (found[0], found[7]) == ("write_protected", "branch_not_found")
    assert sorted(found[1:4]) == ["", "precondition_failed", "precondition_failed"]
    assert found[4:7] == [""] * 3
    made = str(1 + found[1:4].index("")).encode()
    assert contents(repository, "main") == {"a": made, "4": b"4", "5": b"5", "6": b"6"}
    assert len(every_file(repository, DATA_PREFIX)) == 4
    assert not pending_addresses(repository)


@pytest.mark.twins
def test_a_commit_that_fails_stages_nothing(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are told so, and no file is left."""
    broken: list[bool] = []
    commit: Callable[[Any, Any], None] = DefaultDialect.do_commit

    def failing(dialect: Any, connection: Any) -> None:
        broken.append(len(broken) == 2)  # of the block itself, the first upload, and the group
        if broken[-1]:
            raise dialect.dbapi.OperationalError("the disk is gone")
        commit(dialect, connection)

    together = Together(repository)
    with together.staging(putting("a", b"1"), putting("b", b"2")) as futures:
        monkeypatch.setattr(DefaultDialect, "do_commit", failing)
    errors = [each.exception() for each in futures]
    assert [isinstance(each, Failed) for each in errors] == [True, True]
    assert errors[0] is not errors[1]
    assert contents(repository, "main") == {"first": b"0"}
    assert every_file(repository, DATA_PREFIX) == {together.addresses[0]}
    assert not pending_addresses(repository)


def test_bytes_are_durable_before_they_are_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, and then its directories; and the address is registered before all of these."""
    with Store.init(tmp_path / "store") as store:
        lake = store.create_repository("lake")
        lake.objects.put("main", "a", b"1")
        root = Path(lake.storage.url.removeprefix("file://"))
        seen: list[tuple[str, int, int]] = []
        fsync = os.fsync

        def watched(descriptor: int) -> None:
            fsync(descriptor)
            place = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(root)
            kind = "file" if "#" in place.name else "directory"
            seen.append((kind, count(lake, pending), count(lake, staged)))

        monkeypatch.setattr(os, "fsync", watched)
        lake.objects.put("main", "b", b"2")
        assert seen == [("file", 1, 1)] + [("directory", 1, 1)] * 3
        assert count(lake, staged) == 2


@randomized("uploads in groups")
def test_many_at_once(tmp_path: Path, seed: int) -> None:
    """Each thread sees its own paths as if it were alone, whatever the others do, and whatever the
    storage fails to do. At the end nothing is registered, and each file has a reason to be there.
    """
    chances = Random(seed)
    with Store.init(tmp_path / "store") as store:
        lake = store.create_repository("lake")

        def fail(method: str, address: str) -> None:
            if method == "put" and address.startswith(DATA_PREFIX) and chances.random() < 0.05:
                raise Failed("storage_error", "made to fail")

        before = FaultyStorage(lake.storage, before=fail)
        faulty = with_storage(lake, FaultyStorage(before, after=fail))
        with ThreadPoolExecutor(8) as pool:
            models = [
                each.result()
                for each in [
                    pool.submit(act_alone, faulty, number, Random(f"{seed} {number}"))
                    for number in range(8)
                ]
            ]
        expected = {path: data for model in models for path, data in model.items()}
        assert {k: v for k, v in contents(lake, "main").items() if k != "shared"} == expected
        assert not pending_addresses(lake)
        shown = {entry.address for entry in lake.objects.walk("main")}
        with lake.context.metadata.snapshot() as tx:
            # A staged one can lie below a newer one, until a commit that failed is repeated.
            known = set(tx.execute(sa.select(staged.c.address)).scalars())
            known |= set(tx.execute(sa.select(released.c.address)).scalars())
        committed = {
            entry.address
            for commit in lake.commits.log("main")
            for entry in lake.objects.walk(commit.commit_id)
        }
        assert every_file(lake, DATA_PREFIX) <= known | committed
        assert shown <= every_file(lake, DATA_PREFIX)


def act_alone(lake: Repository, number: int, chances: Random) -> dict[str, bytes]:
    """Returns what a thread's own paths have at the end."""
    model: dict[str, bytes] = {}
    for step in range(25):
        path, data = f"{number}/{chances.randrange(4)}", f"{number} {step}".encode()
        act = chances.choice(
            ("put", "put", "put", "create", "replace", "delete", "shared", "commit")
        )
        try:
            if act == "put":
                lake.objects.put("main", path, data)
                model[path] = data
            elif act == "create":
                lake.objects.put("main", path, data, only_if=CREATED)
                assert path not in model
                model[path] = data
            elif act == "replace":
                old = lake.objects.stat("main", path).checksum if path in model else "0" * 64
                lake.objects.put("main", path, data, only_if=OnlyIf(old))
                assert path in model
                model[path] = data
            elif act == "delete":
                lake.objects.delete("main", path)
                del model[path]
            elif act == "shared":
                lake.objects.put("main", "shared", data)
            else:
                lake.commits.commit("main", "", allow_empty=True)
        except Conflict as error:
            assert error.kind in ("precondition_failed", "branch_moved"), error
            if error.kind == "precondition_failed":
                assert (act == "create") == (path in model)
        except EbbtideError as error:
            assert error.kind in ("storage_error", "object_not_found"), error
        if path in model:
            assert lake.objects.get("main", path) == model[path]
    return model
