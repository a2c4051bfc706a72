"""Users who write, copy and drop what is staged on branches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any, Final

from ebbtide.errors import EbbtideError
from tests.gc.model import Head
from tests.gc.slow_users import Call, SlowUsers, Steps
from tests.gc.users import PATHS, Act

OUTSIDE: Final = "outside/"
"""Where in the bucket imported objects lie."""


@dataclass
class StagingUsers(SlowUsers):
    """The users. `owed` are the sources of renames that are half done."""

    owed: list[tuple[str, str]] = field(default_factory=list)

    def _data(self) -> bytes:
        self.count += 1
        return f"{self.count}".encode()

    def _staged(
        self,
        name: str,
        path: str,
        call: Call,
        *,
        expected: Callable[[], Collection[bytes]],
        reasons: Callable[[], dict[str, bool]] = dict,
    ) -> Generator[Call, Any, bool]:
        """Call what stages bytes at an address of their own; whether it did."""
        try:
            entry = yield call
        except EbbtideError as error:
            self._told(
                error,
                branch_not_found=name not in self.model.branches,
                write_expired=self._too_late,
                storage_error=self._too_late,
                **reasons(),
            )
            return False
        assert not self._too_late
        assert self.model.files[entry.address] in expected()
        self.model.branches[name].staged[path] = entry.address
        return True

    def _put(self, act: Act) -> Steps:
        name, path = self._head(act.first).name, PATHS[act.second % len(PATHS)]
        data, lake = self._data(), self.world.lake
        content = [data, b"."] if act.third % 3 else data + b"."
        yield from self._staged(
            name,
            path,
            lambda: lake.objects.put(name, path, content),
            expected=lambda: [data + b"."],
        )

    def _delete(self, act: Act) -> None:
        head = self._head(act.first)
        path = self._path(head, act.second)
        if path is not None:
            self._delete_path(head, path)

    def _delete_path(self, head: Head[str], path: str) -> None:
        self.world.lake.objects.delete(head.name, path)
        self.model.delete(head, path)

    def _path(self, head: Head[str], number: int) -> str | None:
        """One that the branch shows."""
        paths = sorted(self.model.shown(head))
        return paths[number % len(paths)] if paths else None

    def _copy(self, act: Act) -> Steps:
        head = self._head(act.first)
        yield from self._copied(head, head, act.second, PATHS[act.third % len(PATHS)])

    def _copy_across(self, act: Act) -> Steps:
        head, source = self._head(act.first), self._head(act.first + 1 + act.third % 2)
        yield from self._copied(head, source, act.second, PATHS[act.third % len(PATHS)])

    def _rename(self, act: Act) -> Steps:
        """A copy, and then its source is deleted: at once, or when the next rename is asked for,
        after whatever came in between."""
        if self.owed:
            self._delete_owed()
            return
        head = self._head(act.first)
        source = self._path(head, act.second)
        others = [path for path in PATHS if path != source]
        done = yield from self._copied(head, head, act.second, others[act.third % len(others)])
        if done and source is not None:
            self.owed.append((head.name, source))
            if act.third % 2:
                self._delete_owed()

    def _delete_owed(self) -> None:
        name, path = self.owed.pop()
        head = self.model.branches.get(name)
        if head is not None and path in self.model.shown(head):
            self._delete_path(head, path)

    def _copied(
        self, head: Head[str], source: Head[str], number: int, target: str
    ) -> Generator[Call, Any, bool]:
        """Copy an object; whether it was. What is staged on the same branch is shared, anything
        else is written anew."""
        path = self._path(source, number)
        if path is None:
            return False
        name, source_name, lake = head.name, source.name, self.world.lake
        address = self.model.shown(source)[path]
        is_staged = any(path in layer for layer in source.layers)
        commit_id = None if is_staged else source.commit_id

        def call() -> Any:
            return lake.objects.copy(name, target, source_name, path)

        if is_staged and head is source:
            entry = yield call
            assert entry.address == address
            head.staged[target] = address
            self.model.shared.append((address, self.world.now))
            return True
        data = self.model.external.get(address) or self.model.files[address]

        def reasons() -> dict[str, bool]:
            is_there = address in self.model.external or address in self.world.files()
            return {
                "commit_expired": commit_id is not None and bool(self.model.runs(commit_id)),
                "corrupt_object": not is_there,
            }

        done = yield from self._staged(name, target, call, expected=lambda: [data], reasons=reasons)
        return done

    def _stage(self, act: Act) -> None:
        """Import an object that lies outside the storage root."""
        head, path, data = self._head(act.first), PATHS[act.second % len(PATHS)], self._data()
        key = f"{OUTSIDE}{data.decode()}"
        self.world.bucket.store(key, data)
        url = f"{self.world.bucket.url}/{key}"
        entry = self.world.lake.addresses.stage(head.name, path, url, size_bytes=len(data))
        assert entry.address == url
        self.model.external[url] = data
        head.staged[path] = url

    def _reset(self, act: Act) -> None:
        """Of a branch, a prefix, or a path."""
        head, commits = self._head(act.first), self.world.lake.commits
        path = PATHS[act.second % len(PATHS)]
        if act.third % 3 == 0:
            commits.reset(head.name)
            dropped, paths = None, set(PATHS)
        elif act.third % 3 == 1:
            dropped = commits.reset_prefix(head.name, path[:1])
            paths = {each for each in PATHS if each.startswith(path[:1])}
        else:
            dropped = commits.reset_path(head.name, path)
            paths = {path}
        assert dropped in (None, sum(each in layer for layer in head.layers for each in paths))
        # New ones, by which a commit that is under way knows that what it sealed was touched.
        head.layers = [
            {each: value for each, value in layer.items() if each not in paths}
            for layer in (head.layers[:1] if act.third % 3 == 0 else head.layers)
        ]
