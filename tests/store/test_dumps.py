"""Dumps: what is in them, and what is restored from them."""

from __future__ import annotations

import json
from datetime import timedelta
from hashlib import sha256

from ebbtide.store.collecting.dumping import Dump
from ebbtide.store.content.layout import DUMPS_PREFIX
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises

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
    with raises("task_not_found"):
        repository.dumps.state("f" * 32)
    # The record of the task goes with the records of runs, and the dump stays.
    clock.advance(400 * DAY)
    repository.dumps.begin()
    with raises("task_not_found"):
        repository.dumps.state(task)
    repository.dumps.restore(state.dump)
