"""Users of one repository, whose every act is drawn: the numbers choose among what is there.

Each act is done to the repository and to the model; errors must be those that the model expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic

from hypothesis import event
from hypothesis import strategies as st

from ebbtide.errors import Conflict, EbbtideError, Gone, InvalidInput
from ebbtide.retention import Policy
from tests.gc.lines import Reader, check_gone
from tests.gc.model import Head, Made, Model, Value
from tests.support.world import World

PATHS = ("a", "a/b", "b", "c/d", "ü")
NAMES = ("one", "two", "short-1")
KINDS = (
    ["put"] * 5
    + ["commit"] * 6
    + ["branch"] * 4
    + ["drop"] * 3
    + ["merge", "revert", "restore"] * 2
    + ["delete", "tag", "drop_tag", "hold", "release", "rules", "wait", "peek"]
)


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a user does."""

    kind: str
    first: int
    second: int
    days: float
    third: int = 0


ACTS = st.builds(
    Act,
    kind=st.sampled_from(KINDS),
    first=st.integers(0, 11),
    second=st.integers(0, 11),
    days=st.sampled_from([0.0, 0.5, 2.0, 5.0, 9.0, 15.0]),
)


@dataclass(slots=True)
class RefUsers(Generic[Value]):
    """Users who make and drop refs and wait: whatever it is that objects are known by."""

    world: World
    model: Model[Value]
    count: int = 0
    done: list[str] = field(default_factory=list)

    def do(self, act: Act) -> None:
        """Do it; an error that the act may end with changes nothing."""
        try:
            getattr(self, f"_{act.kind}")(act)
        except Conflict as error:
            self.done.append(f"{act.kind}: {error.kind}")
        except InvalidInput as error:
            assert error.kind == "invalid_date"
            self.done.append(f"{act.kind}: {error.kind}")
        else:
            self.done.append(act.kind)
        event(self.done[-1])

    def _head(self, number: int) -> Head[Value]:
        return list(self.model.branches.values())[number % len(self.model.branches)]

    def _commit_id(self, number: int) -> str:
        # The newest first: small numbers, which shrinking prefers, are the interesting ones.
        return list(reversed(self.model.commits))[number % len(self.model.commits)]

    def _moved(self, head: Head[Value], commit_id: str, *, contents: Mapping[str, Value]) -> None:
        record = self.world.lake.commits.get(commit_id)
        self.model.left.append((head.commit_id, self.world.now))
        self.model.commits[commit_id] = Made(record.parent_ids, record.created_at, contents)
        head.commit_id = commit_id

    def _branch(self, act: Act) -> None:
        commit_id, name = self._commit_id(act.first), NAMES[act.second % len(NAMES)]
        if name not in self.model.branches and self._allowed(
            lambda: self.world.lake.branches.create(name, commit_id), commit_id
        ):
            self.model.branches[name] = Head(name, commit_id)

    def _drop(self, act: Act) -> None:
        head = self._head(act.first)
        self.world.lake.branches.delete(head.name)  # of main: a conflict
        self.model.drop(head, self.world.now)
        # Of two branches of one name, restoring takes the one that was dropped last.
        self.world.clock.advance(timedelta(microseconds=1))

    def _restore(self, act: Act) -> None:
        head = self.model.restorable(NAMES[act.second % len(NAMES)], self.world.now)
        if head is not None:
            self.world.lake.branches.restore(head.name)
            self.model.trash.remove(head)
            head.expired_at = None
            self.model.branches[head.name] = head

    def _tag(self, act: Act) -> None:
        commit_id, name = self._commit_id(act.first), f"tag-{act.second % 3}"
        if name not in self.model.tags and self._allowed(
            lambda: self.world.lake.tags.create(name, commit_id), commit_id
        ):
            self.model.tags[name] = Head(name, commit_id)

    def _drop_tag(self, act: Act) -> None:
        tags = list(self.model.tags.values())
        if tags:
            tag = tags[act.first % len(tags)]
            self.world.lake.tags.delete(tag.name)
            self.model.drop_tag(tag, self.world.now)

    def _hold(self, act: Act) -> None:
        commit_id = self._commit_id(act.first)
        if self._allowed(lambda: self.world.lake.retention.hold(commit_id, ""), commit_id):
            self.model.holds.add(commit_id)

    def _release(self, act: Act) -> None:
        for commit_id in sorted(self.model.holds)[: 1 + act.first % 2]:
            self.world.lake.retention.release(commit_id)
            self.model.holds.remove(commit_id)

    def _rules(self, act: Act) -> None:
        days = (1, 3, 7, 20)
        self.set_rules(default=days[act.first % 4], **{"short-*": days[act.second % 4]})

    def set_rules(self, **rules: int) -> None:
        """Set the policy: days by pattern."""
        globs = {name: f"{days}d" for name, days in rules.items() if name != "default"}
        self.world.lake.retention.set(
            Policy.parse({"default": f"{rules['default']}d", "branches": globs})
        )
        self.model.rules = rules

    def _wait(self, act: Act) -> None:
        self.world.clock.advance(timedelta(days=act.days))

    def _allowed(self, work: object, commit_id: str) -> bool:
        """Whether it worked; it must, unless a run closed the commit, and then it is told so."""
        assert callable(work)
        try:
            work()
        except Gone as error:
            self._check_lost(error, commit_id)
            return False
        assert commit_id not in self.model.closed
        return True

    def _check_lost(self, error: EbbtideError, *commit_ids: str) -> None:
        lost, run_id = error.details["commit_id"], error.details["run_id"]
        assert lost in commit_ids
        assert run_id in self.model.runs(lost)
        check_gone(error, run_id)

    def _ancestors(self, commit_id: str) -> set[str]:
        parent_ids = self.model.commits[commit_id].parent_ids
        return set(parent_ids).union(*(self._ancestors(parent_id) for parent_id in parent_ids))


@dataclass(slots=True)
class Users(RefUsers[bytes]):
    """Users who write too. Objects are known by their bytes: no two are alike."""

    def _put(self, act: Act) -> None:
        head = self._head(act.first)
        self.count += 1
        path, data = PATHS[act.second % len(PATHS)], f"{self.count}".encode()
        self.world.lake.objects.put(head.name, path, data)
        head.staged[path] = data

    def _delete(self, act: Act) -> None:
        head = self._head(act.first)
        paths = sorted(self.model.shown(head))
        if paths:
            path = paths[act.second % len(paths)]
            self.world.lake.objects.delete(head.name, path)
            self.model.delete(head, path)

    def _commit(self, act: Act) -> None:
        head = self._head(act.first)
        date = self.world.now - timedelta(days=act.days)
        contents = self.model.shown(head)
        head.seal()
        made = self.world.lake.commits.commit(head.name, "", date=date, allow_empty=act.days > 5)
        self._moved(head, made.commit_id, contents=contents)
        del head.layers[1:]

    def _peek(self, act: Act) -> None:
        commit_id = self._commit_id(act.first)
        for path, data in self.model.commits[commit_id].contents.items():
            if self._allowed(lambda p=path: self.world.lake.objects.get(commit_id, p), commit_id):
                assert self.world.lake.objects.get(commit_id, path) == data

    def _merge(self, act: Act) -> None:
        head, source_id = self._head(act.first), self._commit_id(act.second)
        before = head.commit_id
        try:
            made = self.world.lake.commits.merge(source_id, head.name, strategy="source-wins")
        except Gone as error:
            self._check_lost(error, source_id, *self._ancestors(source_id))
            return
        assert source_id not in self.model.closed
        self._made_from(head, made.commit_id, before, source_id)

    def _revert(self, act: Act) -> None:
        head, reverted_id = self._head(act.first), self._commit_id(act.second)
        parent_ids = self.model.commits[reverted_id].parent_ids
        if not parent_ids:
            return
        before = head.commit_id
        try:
            made = self.world.lake.commits.revert(head.name, reverted_id)
        except Gone as error:
            self._check_lost(error, reverted_id, parent_ids[0])
            return
        assert not {reverted_id, parent_ids[0]} & set(self.model.closed)
        self._made_from(head, made.commit_id, before, parent_ids[0])

    def _made_from(self, head: Head[bytes], commit_id: str, *sources: str) -> None:
        """What a merge or revert made: every entry of it comes from one of its sources."""
        contents = Reader(self.world).contents(commit_id)
        for path, data in contents.items():
            assert data in [self.model.commits[source].contents.get(path) for source in sources]
        self._moved(head, commit_id, contents=contents)
