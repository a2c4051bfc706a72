"""Users who commit, merge and revert, and read what was committed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ebbtide.errors import EbbtideError, Gone
from tests.gc.model import Head
from tests.gc.slow_users import Call, Steps
from tests.gc.staging_users import StagingUsers
from tests.gc.users import Act

CLOCK_PRECISION: Final = timedelta(seconds=1)
"""Of a storage that dates in whole seconds."""


@dataclass
class CommittingUsers(StagingUsers):
    """The users."""

    def _commit(self, act: Act) -> Steps:
        head, lake = self._head(act.first), self.world.lake
        date = self.world.now - timedelta(days=act.days) if act.days else None
        contents, before = self.model.shown(head), head.commit_id
        is_empty = not any(head.layers)
        head.seal()
        sealed = head.layers[1:]
        started_at = self.world.now

        def call() -> Any:
            return lake.commits.commit(head.name, "", date=date, allow_empty=act.days > 5)

        def moved() -> bool:
            here = self.model.branches.get(head.name)
            return here is not head or head.commit_id != before or not _ends_with(head, sealed)

        try:
            made = yield call
        except EbbtideError as error:
            parent = self.model.commits[before]
            self._told(
                error,
                nothing_to_commit=is_empty,
                invalid_date=date is not None and date < parent.created_at,
                branch_moved=moved(),
                branch_not_found=head.name not in self.model.branches,
                write_expired=self._too_late,
                storage_error=self._too_late,
                clock_skew=self._paused(started_at),
                commit_expired=bool(self.model.runs(before)),
            )
            return
        assert not self._too_late
        assert not moved()
        self._moved_to(head, made.commit_id, contents)
        head.layers = [layer for layer in head.layers if not any(layer is each for each in sealed)]

    def _paused(self, started_at: datetime) -> bool:
        """Whether a file that was just written is too old to be of now."""
        return self.world.now - started_at + CLOCK_PRECISION > self.world.settings.clock_skew_max

    def _moved_to(self, head: Head[str], commit_id: str, contents: dict[str, str]) -> None:
        self._moved(head, commit_id, contents=contents)
        self.note_pointers(commit_id)

    def note_pointers(self, commit_id: str) -> None:
        """Tell the model the files of a commit's tree."""
        context = self.world.lake.context
        tree = context.tree_of(self.world.lake.commits.get(commit_id))
        ranges = (info.address for info in tree.ranges)
        self.model.pointers[commit_id] = frozenset([tree.address, *ranges])

    def _merge(self, act: Act) -> Steps:
        head, source_id, lake = self._head(act.first), self._commit_id(act.second), self.world.lake
        yield from self._made(
            head,
            lambda: lake.commits.merge(source_id, head.name, strategy="source-wins"),
            source_ids=[source_id],
            lost=[source_id, *self._ancestors(source_id)],
        )

    def _revert(self, act: Act) -> Steps:
        head, reverted_id = self._head(act.first), self._commit_id(act.second)
        parent_ids, lake = self.model.commits[reverted_id].parent_ids, self.world.lake
        if parent_ids:
            yield from self._made(
                head,
                lambda: lake.commits.revert(head.name, reverted_id),
                source_ids=parent_ids[:1],
                lost=[reverted_id, parent_ids[0]],
            )

    def _made(
        self, head: Head[str], call: Call, *, source_ids: Collection[str], lost: Collection[str]
    ) -> Steps:
        """Make a commit from commits: every entry comes from one of them."""
        before, is_dirty = head.commit_id, any(head.layers)
        started_at = self.world.now
        try:
            made = yield call
        except Gone as error:
            self._check_lost(error, before, *lost)
            return
        except EbbtideError as error:
            moved = self.model.branches.get(head.name) is not head or head.commit_id != before
            self._told(
                error,
                nothing_to_merge=True,
                nothing_to_commit=True,
                merge_conflict=True,
                branch_dirty=is_dirty,
                branch_moved=moved,
                branch_not_found=head.name not in self.model.branches,
                write_expired=self._too_late,
                storage_error=self._too_late,
                clock_skew=self._paused(started_at),
            )
            return
        assert not self._too_late
        assert head.commit_id == before
        assert not self.model.closed.keys() & {before, *source_ids}
        walked = self.world.lake.objects.walk(made.commit_id)
        contents = {entry.path: entry.address for entry in walked}
        sources = [self.model.commits[each].contents for each in (before, *source_ids)]
        for path, address in contents.items():
            assert address in [source.get(path) for source in sources]
        self._moved_to(head, made.commit_id, contents)

    def _revive(self, act: Act) -> None:
        """Hold a commit that has expired, if no run has closed it yet."""
        expired = self.model.expired(self.world.now) - self.model.closed.keys()
        open_ids = [each for each in self.model.commits if each in expired]
        if open_ids:
            commit_id = open_ids[act.first % len(open_ids)]
            if self._allowed(lambda: self.world.lake.retention.hold(commit_id, ""), commit_id):
                self.model.holds.add(commit_id)

    def _peek(self, act: Act) -> None:
        """Read an object of a commit, if it is there to be read."""
        commit_id = self._commit_id(act.first)
        contents = self.model.commits[commit_id].contents
        for path in sorted(contents)[act.second : act.second + 1]:
            address = contents[path]
            data = self.model.external.get(address) or self.model.files[address]
            try:
                assert self.world.lake.objects.get(commit_id, path) == data
            except Gone as error:
                self._check_lost(error, commit_id)
            else:
                assert commit_id not in self.model.closed


def _ends_with(head: Head[str], sealed: list[dict[str, str | None]]) -> bool:
    """Whether what was sealed is still there, and nobody has touched it."""
    last = head.layers[len(head.layers) - len(sealed) :]
    return len(last) == len(sealed) and all(a is b for a, b in zip(last, sealed, strict=True))
