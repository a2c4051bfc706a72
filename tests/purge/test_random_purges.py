"""Random histories and random targets: what may go, and what is in the way, is what a definition in
plain Python says; and nothing else happens to any file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import pytest

from ebbtide.errors import EbbtideError, Gone
from ebbtide.purge import scanning
from ebbtide.purge.purger import Purges
from ebbtide.purge.verifying import verify
from ebbtide.store.collections.contents import ContentChange, FromCollection, FromRef
from ebbtide.store.gc.run_metadata import set_tombstones
from tests.support.memory_world import MemoryWorld, Place, open_place
from tests.support.purging import SECRET_KEY, data_files, request
from tests.support.randomized import randomized

PATHS = ("a", "b", "c/d", "c/e")
TRASH = timedelta(days=7)
SETTINGS = {
    "lease_ttl": "2h",
    "trash_time": TRASH,
    "range_entries_target": 2,
    "secret_key": SECRET_KEY,
}

Entries = dict[str, str]
"""Addresses by path."""


@dataclass(slots=True)
class Kept:
    """A collection: what it has, what its kept versions had, and when it ends, if it does."""

    collection_id: str
    versions: list[Entries]
    ended_at: object = None


@dataclass(slots=True)
class Model:
    commits: dict[str, Entries] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    heads: dict[str, str] = field(default_factory=dict)
    staged: dict[str, dict[str, str | None]] = field(default_factory=dict)
    collections: dict[str, Kept] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)

    def intact(self) -> dict[str, Entries]:
        return {c: entries for c, entries in self.commits.items() if c not in self.closed}


@dataclass(slots=True)
class Target:
    """What a purge names: entries of commits, staged ones, collections; or all history. With
    `keep_shared`, what others need stays."""

    paths: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    collections: list[str] = field(default_factory=list)
    all_history: bool = False
    keep_shared: bool = False
    addresses: set[str] = field(default_factory=set)
    entries: set[tuple[str, str]] = field(default_factory=set)
    staged: set[tuple[str, str]] = field(default_factory=set)


def in_the_way(model: Model, target: Target, now: object) -> dict[tuple[str, str], set[str]]:
    """Whatever refers to one of the addresses and was not named; and holds. With the addresses."""
    found: dict[tuple[str, str], set[str]] = {}
    for commit_id, entries in model.intact().items():
        hits = {path for path, address in entries.items() if address in target.addresses}
        if hits and commit_id in model.held:
            found["hold", commit_id] = {entries[path] for path in hits}
        named = {path for commit, path in target.entries if commit == commit_id}
        if hits - named and not target.all_history and commit_id not in target.commits:
            found["commit", commit_id] = {entries[path] for path in hits - named}
    for branch, changes in model.staged.items():
        for path, address in changes.items():
            if address in target.addresses and (branch, path) not in target.staged:
                found.setdefault(("staged", branch), set()).add(address or "")
    for collection_id, kept in model.collections.items():
        gone = kept.ended_at is not None and kept.ended_at + TRASH <= now  # type: ignore[operator]
        needed = {address for version in kept.versions for address in version.values()}
        needed &= target.addresses
        if needed and not gone and collection_id not in target.collections:
            found["collection", collection_id] = needed
    return found


class History:
    def __init__(self, world: MemoryWorld, random: Random) -> None:
        self.world = world
        self.lake = world.lake
        self.random = random
        self.model = Model()
        self.project = self.lake.projects.create("p").project_id
        self.note("main")

    def note(self, branch: str) -> None:
        record = self.lake.commits.get(f"{branch}@")
        entries = {e.path: e.address for e in self.lake.objects.walk(record.commit_id)}
        self.model.commits[record.commit_id] = entries
        self.model.heads[branch] = record.commit_id
        self.model.staged.setdefault(branch, {})

    def step(self) -> None:
        """Something happens, or is refused, which is no matter here."""
        self.world.clock.now += timedelta(minutes=1)
        name = self.random.choice(
            ["put"] * 3
            + ["copy", "copy", "commit", "commit", "commit", "branch", "delete"]
            + ["merge", "collect", "collect", "collect", "update", "trash", "age", "hold", "close"]
        )
        try:
            getattr(self, f"do_{name}")()
        except EbbtideError as error:
            assert error.kind != "internal"

    def branch(self) -> str:
        return self.random.choice(sorted(self.model.heads))

    def path(self) -> str:
        return self.random.choice(PATHS)

    def do_put(self) -> None:
        branch, path = self.branch(), self.path()
        data = self.random.randbytes(4)
        self.model.staged[branch][path] = self.lake.objects.put(branch, path, data).address

    def do_copy(self) -> None:
        branch, to = self.branch(), self.path()
        source = branch if self.random.random() < 0.5 else self.branch()
        entry = self.lake.objects.copy(branch, to, source, self.path())
        self.model.staged[branch][to] = entry.address

    def do_delete(self) -> None:
        branch, path = self.branch(), self.path()
        self.lake.objects.delete(branch, path)
        committed = path in self.model.commits[self.model.heads[branch]]
        if committed:
            self.model.staged[branch][path] = None
        else:
            self.model.staged[branch].pop(path)

    def do_commit(self) -> None:
        branch = self.branch()
        self.lake.commits.commit(branch, "some")
        self.model.staged[branch] = {}
        self.note(branch)

    def do_branch(self) -> None:
        if len(self.model.heads) < 3:
            name = f"b{len(self.model.heads)}"
            self.lake.branches.create(name, self.branch())
            self.note(name)

    def do_merge(self) -> None:
        branch = self.branch()
        self.lake.commits.merge(self.branch(), branch)
        self.note(branch)

    def do_collect(self) -> None:
        head = self.model.heads[self.branch()]
        source: FromRef | FromCollection = FromRef(head)
        entries = self.model.commits[head]
        if self.model.collections and self.random.random() < 0.3:
            other = self._collection()
            source, entries = FromCollection(other.collection_id), other.versions[-1]
        name = f"n{len(self.model.collections)}"
        made = self.lake.collections.create(self.project, name, ContentChange([source]))
        kept = Kept(made.collection_id, [entries])
        self.model.collections[made.collection_id] = kept

    def _collection(self) -> Kept:
        return self.model.collections[self.random.choice(sorted(self.model.collections))]

    def do_update(self) -> None:
        if not self.model.collections:
            return
        kept = self._collection()
        keep_version = self.random.random() < 0.5
        entries = self.model.commits[(head := self.model.heads[self.branch()])]
        change = ContentChange([FromRef(head)], replaces=True)
        self.lake.collections.update(kept.collection_id, change, keep_version=keep_version)
        if not keep_version:
            kept.versions.pop()
        kept.versions.append(entries)

    def do_trash(self) -> None:
        if self.model.collections:
            kept = self._collection()
            self.lake.collections.delete(kept.collection_id)
            kept.ended_at = self.world.clock.now

    def do_age(self) -> None:
        self.world.clock.now += timedelta(days=4)

    def do_hold(self) -> None:
        if self.random.random() < 0.3:
            commit_id = self.random.choice(sorted(self.model.commits))
            self.lake.retention.hold(commit_id, "why")
            self.model.held.add(commit_id)

    def do_close(self) -> None:
        free = sorted(set(self.model.commits) - set(self.model.heads.values()))
        if free:
            commit_id = self.random.choice(free)
            context = self.lake.context
            with context.metadata.transaction() as tx:
                set_tombstones(tx, context.repository_id, [commit_id], run_id="run")
            self.model.closed.add(commit_id)

    def target(self) -> Target:
        target = Target(
            all_history=self.random.random() < 0.4, keep_shared=self.random.random() < 0.4
        )
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.choice(["path", "path", "commit", "collection"])
            getattr(self, f"name_{kind}")(target)
        return target

    def name_path(self, target: Target) -> None:
        ref, path = self.branch(), self.path()
        commit_id = self.model.heads[ref]
        if self.random.random() < 0.5:
            commit_id = ref = self.random.choice(sorted(self.model.intact()))
        committed = self.model.intact().get(commit_id, {}).get(path)
        staged = self.model.staged.get(ref, {}).get(path)
        if committed is None and staged is None:
            return
        target.paths.append(f"{ref}:{path}")
        if committed is not None:
            target.entries.add((commit_id, path))
            target.addresses.add(committed)
        if staged is not None:
            target.staged.add((ref, path))
            target.addresses.add(staged)

    def name_commit(self, target: Target) -> None:
        commit_id = self.random.choice(sorted(self.model.intact()))
        target.commits.append(commit_id)
        target.addresses.update(self.model.commits[commit_id].values())

    def name_collection(self, target: Target) -> None:
        visible = [
            kept
            for kept in self.model.collections.values()
            if kept.ended_at is None or kept.ended_at + TRASH > self.world.clock.now  # type: ignore[operator]
        ]
        if visible:
            kept = self.random.choice(visible)
            target.collections.append(kept.collection_id)
            for version in kept.versions:
                target.addresses.update(version.values())


def check_one(history: History, target: Target) -> None:
    world, model, lake = history.world, history.model, history.lake
    expected = in_the_way(model, target, world.clock.now)
    before = data_files(lake)
    purges = Purges(world.store)
    named = request(
        *target.paths,
        commits=tuple(target.commits),
        collections=tuple(target.collections),
        all_history=target.all_history,
        keep_shared=target.keep_shared,
    )
    report = purges.carry_out(purges.begin("lake", named).purge_id)
    assert report.plan is not None
    plan = report.plan
    needed = set[str]().union(*expected.values()) if target.keep_shared else set[str]()
    references = plan.kept_references if target.keep_shared else plan.references
    found = {(each.kind, each.id or each.names[0]) for each in references}
    assert found == set(expected)
    target.addresses -= needed
    assert (plan.object_count, plan.kept_count) == (len(target.addresses), len(needed))
    if expected and not target.keep_shared:
        assert report.row.state == "refused"
        assert data_files(lake) == before
        return
    assert report.row.state == "done"
    assert data_files(lake) == before - target.addresses
    model.purged |= target.addresses
    for branch, path in target.staged:
        if model.staged[branch].get(path) in target.addresses:
            del model.staged[branch][path]
    assert verify(world.store, report.row.purge_id).differences == ()


def check_reads(history: History) -> None:
    """What was purged is 410, all else is as it was."""
    model, lake = history.model, history.lake
    for commit_id, entries in model.intact().items():
        for path, address in entries.items():
            if address in model.purged:
                with pytest.raises(Gone, check=lambda error: error.kind == "purged"):
                    lake.objects.get(commit_id, path)
            else:
                assert len(lake.objects.get(commit_id, path)) == 4
    for branch, changes in model.staged.items():
        staged = {path: address for path, address in changes.items() if address is not None}
        for path, address in staged.items():
            assert lake.objects.stat(branch, path).address == address
            assert len(lake.objects.get(branch, path)) == 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with open_place(tmp_path_factory.mktemp("purges")) as place:
        yield place


@randomized("purges")
def test_what_goes_and_what_is_in_the_way_is_what_the_definition_says(
    place: Place, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "TREES_PER_TASK", 2)
    history = History(MemoryWorld(place, settings=SETTINGS, seed=seed), Random(seed))
    for _ in range(history.random.randint(4, 25)):
        history.step()
    for _ in range(2):
        target = history.target()
        if target.paths or target.commits or target.collections:
            check_one(history, target)
            check_reads(history)
        for _ in range(3):
            history.step()
