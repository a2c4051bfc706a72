"""Policies, holds, what an expired commit still allows, and dumps of refs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from threading import Event
from typing import Final

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone
from ebbtide.ids import descending_id
from ebbtide.retention.policy import Policy, Rule
from ebbtide.store.content.layout import DUMPS_PREFIX
from ebbtide.store.database.schema import commits
from ebbtide.store.embedded import Store
from ebbtide.store.gc.dumps import Dump
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import save

WAIT_SECONDS: Final = 60
RULE: Final = Rule(keep_within=timedelta(days=1))


def expired() -> pytest.RaisesExc[Gone]:
    return pytest.raises(
        Gone,
        check=lambda error: (
            error.kind == "commit_expired"
            and error.details["run_id"] == "run7"
            and "run7" in error.message
        ),
    )


def mark(repository: Repository, commit_id: str, **values: object) -> None:
    with repository.context.metadata.transaction() as tx:
        tx.execute(sa.update(commits).where(commits.c.commit_id == commit_id).values(**values))


def test_two_changes_of_the_policy_at_once(repository: Repository) -> None:
    """The second is written between the reading and the writing of the first. Both rules stay."""
    retention = repository.retention
    retention.set({"default": "7d"})
    read, asked = Event(), Event()

    def first(before: Policy) -> Policy:
        read.set()
        assert asked.wait(WAIT_SECONDS)
        return replace(before, branches={**before.branches, "main": RULE})

    def begin() -> tuple[Policy, tuple[str, ...]]:
        assert read.wait(WAIT_SECONDS)
        asked.set()
        return retention.change(lambda old: replace(old, branches={**old.branches, "dev": RULE}))

    with ThreadPoolExecutor(2) as threads:
        earlier, later = threads.submit(retention.change, first), threads.submit(begin)
        assert earlier.result(WAIT_SECONDS)[1] == ()
        both, unmatched = later.result(WAIT_SECONDS)
    assert both == Policy.parse({"default": "7d", "branches": {"main": "1d", "dev": "1d"}})
    assert (retention.get(), unmatched) == (both, ("dev",))


def test_policies(repository: Repository, clock: ManualClock) -> None:
    """Patterns are held against branches that are not gone."""
    retention = repository.retention
    assert retention.get() is None
    repository.branches.create("user-1", "main")
    repository.branches.delete("user-1")
    written = {"default": "7d", "branches": {"main": "20d", "user-*": "3d", "mian": "1d"}}
    assert retention.set(written) == ("mian",)
    clock.advance(timedelta(days=7))
    assert retention.set(written) == ("mian", "user-*")
    assert retention.get() == Policy.parse(written)
    assert retention.set(Policy.parse({"default": "1d"})) == ()
    for kind, bad in (("invalid_policy", {}), ("invalid_duration", {"default": "7"})):
        with raises(kind):
            retention.set(bad)
    assert retention.get() == Policy.parse({"default": "1d"})
    retention.unset()
    assert retention.get() is None


def test_holds(repository: Repository, clock: ManualClock) -> None:
    first = save(repository, "a")
    second = save(repository, "b")
    retention = repository.retention
    retention.hold(first[:8], "audit")
    clock.advance(timedelta(seconds=1))
    retention.hold("main", "release")
    retention.hold(second, "another reason")
    assert [(hold.commit_id, hold.reason) for hold in retention.holds()] == [
        (first, "audit"),
        (second, "another reason"),
    ]
    retention.release(first)
    with raises("hold_not_found"):
        retention.release(first)
    with raises("ref_not_found"):
        retention.hold("nowhere", "")


def test_what_an_expired_commit_refuses_and_allows(repository: Repository) -> None:
    save(repository, "a")
    doomed = save(repository, "b")
    head = save(repository, "c")
    repository.branches.create("dev", "main")
    repository.branches.create("side", doomed)
    save(repository, "d", "side")
    repository.branches.create("old", doomed)
    repository.tags.create("v1", doomed)
    repository.branches.delete("old")
    repository.tags.delete("v1")
    mark(repository, doomed, tombstoned_by="run7")
    objects, versions = repository.objects, repository.commits
    for refused in (
        lambda: repository.branches.create("x", "main~1"),
        lambda: repository.branches.restore("old"),
        lambda: repository.tags.create("x", doomed),
        lambda: repository.tags.restore("v1"),
        lambda: repository.retention.hold(doomed, ""),
        lambda: objects.get(doomed, "a"),
        lambda: objects.stream(doomed, "b", start=1),
        lambda: objects.copy("dev", "z", doomed, "a"),
        lambda: versions.merge(doomed, "dev"),
        lambda: versions.revert("dev", doomed),
        lambda: versions.revert("dev", head),
    ):
        with expired():
            refused()
    assert objects.stat(doomed, "b").size_bytes == 1
    assert [entry.path for entry in objects.walk(doomed)] == ["a", "b"]
    assert [each.path for each in versions.diff(doomed, "main")] == ["c"]
    assert doomed in [commit.commit_id for commit in versions.log("main")]
    assert versions.get(doomed).tombstoned_by == "run7"
    assert objects.get("main", "b") == b"b", "what the head holds is there"
    merged = versions.merge("side", "main")
    assert [entry.path for entry in objects.walk(merged.commit_id)] == ["a", "b", "c", "d"]


def test_a_forgotten_commit_is_gone_for_everything_but_the_log(repository: Repository) -> None:
    base = save(repository, "a")
    repository.branches.create("dev", "main")
    save(repository, "b", "dev")
    save(repository, "c")
    mark(repository, base, tombstoned_by="run6", forgotten_by="run7", tree_id=None)
    versions = repository.commits
    for refused in (
        lambda: list(repository.objects.walk(base)),
        lambda: repository.objects.stat(base, "a"),
        lambda: list(versions.diff(base, "main")),
        lambda: repository.tags.create("x", base),
        lambda: versions.merge("dev", "main"),
    ):
        with expired():
            refused()
    assert versions.get(base).forgotten_by == "run7"
    assert base in [commit.commit_id for commit in versions.log("main")]


def test_giving_up(repository: Repository, clock: ManualClock) -> None:
    lost = save(repository, "a")
    with raises("commit_in_use"):
        repository.give_up(lost, "disk failure")
    save(repository, "b")
    repository.tags.create("v1", lost)
    with raises("commit_in_use"):
        repository.give_up(lost, "disk failure")
    repository.tags.delete("v1")
    with raises("commit_in_use"):
        repository.give_up(lost, "a trashed tag may come back")
    clock.advance(timedelta(days=7))
    repository.retention.hold(lost, "")
    with raises("commit_in_use"):
        repository.give_up(lost, "held")
    repository.retention.release(lost)
    record = repository.give_up(lost, "disk failure")
    assert record.given_up_reason == "disk failure"
    assert not record.is_intact
    with pytest.raises(Gone, match="given up as damaged: disk failure"):
        repository.branches.create("x", lost)
    with raises("commit_not_found"):
        repository.give_up("0" * 32, "")


DAY = timedelta(days=1)


def rows(repository: Repository, name: str) -> list[dict[str, object]]:
    data = repository.storage.get(f"{DUMPS_PREFIX}{name}.jsonl")
    return [json.loads(line) for line in data.splitlines()]


def refs(repository: Repository) -> dict[str, str]:
    found = {each.name: each.commit_id for each in repository.branches.list()}
    return found | {each.name: each.commit_id for each in repository.tags.list()}


def commit(repository: Repository, name: str) -> str:
    repository.objects.put("main", name, name.encode())
    return repository.commits.commit("main", name, metadata={"k": "v"}).commit_id


def test_a_dump_and_its_refs(repository: Repository, clock: ManualClock) -> None:
    first = commit(repository, "a")
    repository.branches.create("x/y", first, hidden=True)
    repository.branches.create("brief", first, expires_at=clock.now + DAY)
    repository.tags.create("v1", first)
    repository.tags.create("late", first, expires_at=clock.now + 10 * DAY)
    repository.tags.create("trashed", first)
    repository.tags.delete("trashed")
    dump = repository.dumps.dump()
    assert [row["name"] for row in rows(repository, dump.branches_id)] == ["brief", "main", "x/y"]
    assert [row["name"] for row in rows(repository, dump.tags_id)] == ["late", "v1"]
    (last,) = [row for row in rows(repository, dump.commits_id) if row["commit_id"] == first]
    assert (last["message"], last["metadata"], last["expired"]) == ("a", {"k": "v"}, False)
    record = repository.commits.get(first)
    assert (last["tree_id"], last["tree_checksum"]) == (record.tree_id, record.tree_checksum)
    assert repository.dumps.dump() == dump
    before = refs(repository)
    for name in ("x/y", "brief"):
        repository.branches.delete(name)
    for name in ("v1", "late"):
        repository.tags.delete(name)
    clock.advance(DAY)
    repository.dumps.restore(dump)
    assert refs(repository) == {name: at for name, at in before.items() if name != "brief"}
    assert repository.branches.get("x/y").hidden
    assert repository.tags.get("late").expires_at == clock.now + 9 * DAY
    assert repository.objects.get("v1", "a") == b"a"
    again = refs(repository)
    repository.dumps.restore(dump)
    assert refs(repository) == again


def test_all_refs_or_none(repository: Repository) -> None:
    first = commit(repository, "a")
    for name in ("b", "c"):
        repository.branches.create(name, first)
    repository.tags.create("t", first)
    dump = repository.dumps.dump()
    for name in ("b", "c"):
        repository.branches.delete(name)
    repository.tags.delete("t")
    second = commit(repository, "b")
    later = repository.dumps.dump()
    with raises("invalid_argument"):  # the files of two dumps
        repository.dumps.restore(Dump(later.branches_id, dump.tags_id, dump.commits_id))
    repository.tags.create("t", second)
    with raises("tag_exists"):
        repository.dumps.restore(dump)
    assert refs(repository) == {"main": second, "t": second}
    repository.tags.delete("t")
    repository.branches.create("t", first)
    with raises("branch_exists"):
        repository.dumps.restore(dump)
    assert set(refs(repository)) == {"main", "t"}
    repository.branches.delete("t")
    # A branch that has moved since stays where it is.
    repository.dumps.restore(dump)
    assert refs(repository) == {"main": second, "b": first, "c": first, "t": first}


def test_what_is_no_dump(store: Store, repository: Repository) -> None:
    dump = repository.dumps.dump()
    for name in ("../../OWNER", "", "f" * 63):
        with raises("invalid_argument"):
            repository.dumps.restore(Dump(name, dump.tags_id, dump.commits_id))
    with raises("invalid_argument"):
        repository.dumps.restore(Dump(dump.commits_id, dump.tags_id, dump.commits_id))
    other = store.create_repository("other")
    with raises("object_not_found"):
        other.dumps.restore(dump)
    place = f"{DUMPS_PREFIX}{dump.branches_id}.jsonl"
    repository.storage.put(place, b"{}\n")
    with raises("corrupt_object"):
        repository.dumps.restore(dump)


def test_a_commit_that_the_database_lacks(store: Store, repository: Repository) -> None:
    """The files of a dump are copied to another repository."""
    commit(repository, "a")
    repository.branches.create("side", "main")
    repository.branches.create("zz", "main")
    dump = repository.dumps.dump()
    other = store.create_repository("other")

    def put_lines(lines: bytes) -> str:
        name = sha256(lines).hexdigest()
        other.storage.put(f"{DUMPS_PREFIX}{name}.jsonl", lines)
        return name

    found = [row for row in rows(repository, dump.branches_id) if row["name"] != "main"]
    names = [put_lines(b"".join(json.dumps(row).encode() + b"\n" for row in found))]
    for name in (dump.tags_id, dump.commits_id):
        names.append(put_lines(repository.storage.get(f"{DUMPS_PREFIX}{name}.jsonl")))
    with raises("commit_not_found"):
        other.dumps.restore(Dump(*names))
    assert set(refs(other)) == {"main"}


def test_tasks(repository: Repository, clock: ManualClock) -> None:
    task = repository.dumps.begin()
    assert not repository.dumps.state(task).done
    repository.dumps.carry_out_dump(task)
    state = repository.dumps.state(task)
    assert state.done
    assert state.dump == repository.dumps.dump()
    assert state.error is None
    dead = repository.dumps.begin()
    clock.advance(DAY)
    assert repository.dumps.state(dead).error
    for missing in ("../x", "f" * 32, descending_id(clock.now)):
        with raises("task_not_found"):
            repository.dumps.state(missing)
    # The record of the task goes with the records of runs, and the dump stays.
    clock.advance(400 * DAY)
    repository.dumps.begin()
    with raises("task_not_found"):
        repository.dumps.state(task)
    repository.dumps.restore(state.dump)
