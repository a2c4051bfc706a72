"""Any sequence of operations on a repository, against dictionaries."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from ebbtide.errors import Conflict, EbbtideError, NotFound
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.conftest import START
from tests.support.clock import ManualClock
from tests.support.databases import SqliteDatabases
from tests.support.randomized import INDEPENDENT, examples, randomized

Files = dict[str, bytes]
VOLUME = "operations on a repository"
PATHS = st.sampled_from(["a", "a/b", "a/c", "b", "dir/x", "dir/y/z", "é"])
PATHS_SAVED = st.sampled_from(["a", "a/b", "b"])
"""Few, so that commits of two branches come into conflict."""
DATA = st.binary(max_size=2)


@dataclass
class ModelBranch:
    """A branch: its commit, and what is staged on it; None is a delete."""

    commit_id: str
    staged: dict[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelCommit:
    """A commit with all its files. `order` grows with each one made."""

    parent_ids: tuple[str, ...]
    files: Files
    order: int


class Model:
    """What a repository should hold."""

    def __init__(self, initial: str) -> None:
        self.commits = {initial: ModelCommit((), {}, 0)}
        self.branches = {"main": ModelBranch(initial)}
        self.trash: dict[str, dict[str, ModelBranch]] = {}
        """By name, then by id: the trash holds any number of a name."""

    def shown(self, name: str) -> Files:
        branch = self.branches[name]
        merged = self.commits[branch.commit_id].files | branch.staged
        return {path: data for path, data in merged.items() if data is not None}

    def add(self, branch: str, commit_id: str, files: Files, *more_parents: str) -> None:
        parents = (self.branches[branch].commit_id, *more_parents)
        self.commits[commit_id] = ModelCommit(parents, files, len(self.commits))
        self.branches[branch].commit_id = commit_id

    def ancestors(self, commit_id: str) -> set[str]:
        found: set[str] = set()
        todo = [commit_id]
        while todo:
            current = todo.pop()
            if current not in found:
                found.add(current)
                todo += self.commits[current].parent_ids
        return found

    def base(self, left: str, right: str) -> str:
        common = self.ancestors(left) & self.ancestors(right)
        return max(common, key=lambda commit_id: self.commits[commit_id].order)

    def merged(self, base: Files, theirs: Files, ours: Files) -> Files | None:
        """Three-way, path by path; None with conflicts."""
        result = dict(ours)
        for path in base.keys() | theirs.keys():
            old, new, own = base.get(path), theirs.get(path), ours.get(path)
            if new in (old, own):
                continue
            if own != old:
                return None
            if new is None:
                del result[path]
            else:
                result[path] = new
        return result


class StoreMachine(RuleBasedStateMachine):
    """A repository and its model, side by side."""

    template: Path

    branches: Bundle[str] = Bundle("branches")
    trashed: Bundle[str] = Bundle("trashed")
    commits: Bundle[str] = Bundle("commits")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ebbtide-machine-"))
        self.clock = ManualClock(START)
        shutil.copy(self.template, self.directory / "metadata.db")
        chosen = Settings(
            database_url=f"sqlite:///{self.directory / 'metadata.db'}", range_entries_target=2
        )
        self.store = Store.init(None, settings=chosen, clock=self.clock)
        self.lake = self.store.create_repository("lake", storage_url=f"memory:{new_id()}")
        self.model = Model(self.lake.commits.resolve("main"))

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @initialize(target=branches, path=PATHS_SAVED, data=DATA)
    def begin(self, path: str, data: bytes) -> MultipleResults[str]:
        """Makes two branches that differ: without them a history hardly comes to a merge."""
        self.create_branch("dev", "main")
        self.save("dev", path, data)
        return multiple("main", "dev")

    @rule(branch=branches, path=PATHS, data=DATA)
    def put(self, branch: str, path: str, data: bytes) -> None:
        if branch not in self.model.branches:
            with pytest.raises(NotFound):
                self.lake.objects.put(branch, path, data)
            return
        self.lake.objects.put(branch, path, data)
        self.model.branches[branch].staged[path] = data

    @rule(branch=branches, path=PATHS)
    def delete(self, branch: str, path: str) -> None:
        if branch not in self.model.branches or path not in self.model.shown(branch):
            with pytest.raises(NotFound):
                self.lake.objects.delete(branch, path)
            return
        self.lake.objects.delete(branch, path)
        state = self.model.branches[branch]
        if path in self.model.commits[state.commit_id].files:
            state.staged[path] = None
        else:
            del state.staged[path]

    @rule(branch=branches, source=branches, path=PATHS, destination=PATHS)
    def copy(self, branch: str, source: str, path: str, destination: str) -> None:
        names = self.model.branches
        if branch not in names or source not in names or path not in self.model.shown(source):
            with pytest.raises(NotFound):
                self.lake.objects.copy(branch, destination, source, path)
            return
        self.lake.objects.copy(branch, destination, source, path)
        names[branch].staged[destination] = self.model.shown(source)[path]

    @rule(target=commits, branch=branches)
    def commit(self, branch: str) -> str:
        return self.commit_staged(branch)

    def commit_staged(self, branch: str) -> str:
        self.pass_time()
        state = self.model.branches.get(branch)
        if state is None or not state.staged:
            kind = "branch_not_found" if state is None else "nothing_to_commit"
            self.refused(kind, lambda: self.lake.commits.commit(branch, ""))
            return self.lake.commits.resolve("main")
        commit_id = self.lake.commits.commit(branch, "").commit_id
        self.model.add(branch, commit_id, self.model.shown(branch))
        state.staged = {}
        return commit_id

    @rule(target=commits, branch=branches, path=PATHS_SAVED, data=DATA)
    def save(self, branch: str, path: str, data: bytes) -> str:
        """Puts and commits in one step: most commits come from here, and leave branches clean."""
        self.put(branch, path, data)
        return self.commit_staged(branch)

    @rule(target=branches, name=st.sampled_from(["dev", "test/1", "qa"]), source=branches)
    def create_branch(self, name: str, source: str) -> str:
        if name in self.model.branches:
            self.refused("branch_exists", lambda: self.lake.branches.create(name, source))
        elif source not in self.model.branches:
            self.refused("ref_not_found", lambda: self.lake.branches.create(name, source))
        else:
            self.lake.branches.create(name, source)
            self.model.branches[name] = ModelBranch(self.model.branches[source].commit_id)
        return name

    @rule(target=trashed, branch=branches)
    def delete_branch(self, branch: str) -> str:
        if branch == "main":
            self.refused("branch_protected", lambda: self.lake.branches.delete(branch))
        elif branch not in self.model.branches:
            self.refused("branch_not_found", lambda: self.lake.branches.delete(branch))
        else:
            self.pass_time()
            deleted = self.lake.branches.delete(branch)
            named = self.model.trash.setdefault(branch, {})
            named[deleted.ref_id] = self.model.branches.pop(branch)
        return branch

    @rule(target=branches, branch=consumes(trashed))
    def restore_branch(self, branch: str) -> str:
        named = self.model.trash.get(branch, {})
        if len(named) > 1:
            self.refused("ref_ambiguous", lambda: self.lake.branches.restore(branch))
        if branch in self.model.branches:
            chosen = next(iter(named), branch)
            self.refused("branch_exists", lambda: self.lake.branches.restore(chosen))
        elif not named:
            self.refused("branch_not_found", lambda: self.lake.branches.restore(branch))
        else:
            newest = list(named)[-1]
            self.lake.branches.restore(branch if len(named) == 1 else newest)
            self.model.branches[branch] = named.pop(newest)
        return branch

    @rule(target=commits, source=branches, branch=branches)
    def merge(self, source: str, branch: str) -> str:
        self.pass_time()
        names = self.model.branches
        if branch not in names or (source not in names and not names[branch].staged):
            with pytest.raises(NotFound):
                self.lake.commits.merge(source, branch)
            return self.lake.commits.resolve("main")
        if names[branch].staged:
            self.refused("branch_dirty", lambda: self.lake.commits.merge(source, branch))
            return self.lake.commits.resolve(branch)
        ours, theirs = names[branch].commit_id, names[source].commit_id
        base = self.model.base(ours, theirs)
        files = {each: self.model.commits[each].files for each in (base, ours, theirs)}
        merged = self.model.merged(files[base], files[theirs], files[ours])
        if base == theirs:
            self.refused("nothing_to_merge", lambda: self.lake.commits.merge(source, branch))
        elif merged is None:
            self.refused("merge_conflict", lambda: self.lake.commits.merge(source, branch))
        else:
            commit_id = self.lake.commits.merge(source, branch).commit_id
            self.model.add(branch, commit_id, merged, theirs)
        return self.lake.commits.resolve(branch)

    @rule(target=commits, branch=branches, commit_id=commits)
    def revert(self, branch: str, commit_id: str) -> str:
        self.pass_time()
        state = self.model.branches.get(branch)
        undone = self.model.commits[commit_id]
        if state is None or state.staged or not undone.parent_ids:
            with pytest.raises(EbbtideError):
                self.lake.commits.revert(branch, commit_id)
            return commit_id
        ours = self.model.commits[state.commit_id].files
        theirs = self.model.commits[undone.parent_ids[0]].files
        result = self.model.merged(undone.files, theirs, ours)
        if result is None or result == ours:
            with pytest.raises(Conflict):
                self.lake.commits.revert(branch, commit_id)
            return commit_id
        reverted = self.lake.commits.revert(branch, commit_id).commit_id
        self.model.add(branch, reverted, result)
        return reverted

    @rule(branch=branches, prefix=st.sampled_from(["", "a", "a/", "dir/", "zzz"]))
    def reset(self, branch: str, prefix: str) -> None:
        state = self.model.branches.get(branch)
        if state is None:
            self.refused("branch_not_found", lambda: self.lake.commits.reset(branch))
            return
        dropped = [path for path in state.staged if path.startswith(prefix)]
        if prefix:
            assert self.lake.commits.reset_prefix(branch, prefix) == len(dropped)
        else:
            self.lake.commits.reset(branch)
        for path in dropped:
            del state.staged[path]

    @rule(branch=branches, commit_id=commits, force=st.booleans())
    def hard_reset(self, branch: str, commit_id: str, force: bool) -> None:
        state = self.model.branches.get(branch)

        def reset() -> object:
            return self.lake.commits.reset_to(branch, commit_id, force=force)

        if state is None:
            self.refused("branch_not_found", reset)
        elif state.staged and not force:
            self.refused("branch_dirty", reset)
        else:
            reset()
            self.model.branches[branch] = ModelBranch(commit_id)

    @rule(branch=branches, path=PATHS)
    def describe(self, branch: str, path: str) -> None:
        """The metadata is written anew, and is the same: an equal entry is staged."""
        state = self.model.branches.get(branch)
        if state is None or path not in self.model.shown(branch):
            with pytest.raises(NotFound):
                self.lake.objects.set_metadata(branch, path, {})
            return
        before = self.lake.objects.stat(branch, path)
        assert self.lake.objects.set_metadata(branch, path, {}) == before
        state.staged[path] = self.model.shown(branch)[path]

    @rule(left=commits, right=commits)
    def diff(self, left: str, right: str) -> None:
        ours, theirs = (self.model.commits[each].files for each in (left, right))
        expected = [path for path in sorted(ours | theirs) if ours.get(path) != theirs.get(path)]
        assert [change.path for change in self.lake.commits.diff(left, right)] == expected

    @rule(commit_id=commits)
    def read_back(self, commit_id: str) -> None:
        assert self.read(commit_id) == self.model.commits[commit_id].files
        log = self.lake.commits.log(commit_id)
        assert [each.commit_id for each in log] == sorted(
            self.model.ancestors(commit_id), key=lambda each: -self.model.commits[each].order
        )

    @invariant()
    def branches_show_what_they_should(self) -> None:
        assert [branch.name for branch in self.lake.branches.list()] == sorted(self.model.branches)
        for name, state in self.model.branches.items():
            assert self.read(name) == self.model.shown(name)
            base = self.model.commits[state.commit_id].files
            changed = [
                path for path, data in sorted(state.staged.items()) if base.get(path) != data
            ]
            assert [each.path for each in self.lake.commits.diff_staged(name)] == changed

    def pass_time(self) -> None:
        """Commits are dated in the order in which they are made, each in an instant of its own."""
        self.clock.advance(timedelta(seconds=1))

    def read(self, ref: str) -> Files:
        objects = self.lake.objects
        return {entry.path: objects.get(ref, entry.path) for entry in objects.walk(ref)}

    def refused(self, kind: str, operation: Callable[[], object]) -> None:
        with pytest.raises(EbbtideError) as caught:
            operation()
        assert caught.value.kind == kind


@randomized(VOLUME)
def test_any_sequence_of_operations(sqlite_databases: SqliteDatabases) -> None:
    machine = type("Machine", (StoreMachine,), {"template": sqlite_databases.template})
    chosen = examples(
        VOLUME,
        stateful_step_count=40,
        backend=INDEPENDENT,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)
