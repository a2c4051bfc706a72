"""Clients that work on one repository over HTTP at the same time, each with a model of its own.

A client writes, on every branch, at paths that nobody else writes to. What it was told is done must
be so from then on, whatever others, and a collector, do meanwhile.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, Final

import httpx

WORK: Final = tuple(f"work-{number}" for number in range(6))
BRANCHES: Final = (*WORK, "next", "main")
"""What is merged goes from `work-…` to `next`, and from there to `main`. No way leads back, so that
what a client wrote on a branch does not change there but by itself."""
MERGES: Final = dict.fromkeys(WORK, "next") | {"next": "main"}
NAMES: Final = ("a", "b", "c/d", "c/e", "ü", "z")
SHARED: Final = ("shared/0", "shared/1")
"""Paths that all write to: nobody knows what they hold, but that somebody wrote it."""
KEEP_LAST: Final = 3
"""The policy: so many commits of each branch."""
TAGS_MAX: Final = 2
SLOW_EVERY: Final = 4
"""One of so many clients waits for the collector now and then."""
SLOW_BYTES: Final = 1_500_000
"""An upload that is written to its file as it comes; a short one comes first."""
MERGE_REFUSALS: Final = (
    "nothing_to_merge",
    "branch_dirty",
    "branch_moved",
    "merge_conflict",
    "commit_expired",
)
RETRIES: Final = 20
RUNS_SECONDS_MAX: Final = 30.0
MORE_SECONDS_MAX: Final = 20.0
PREFIX: Final = "/repositories/lake"

Contents = dict[str, str]
"""Path → checksum."""


class Progress:
    """How many runs have ended, for those who wait, and whether to begin nothing new."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._runs = 0
        self._failed = False
        self.over = False

    def run_ended(self) -> None:
        with self._changed:
            self._runs += 1
            self._changed.notify_all()

    def fail(self) -> None:
        """Somebody met an error: nobody waits any more."""
        with self._changed:
            self._failed = self.over = True
            self._changed.notify_all()

    def end_after(self, seconds: float, *, has_seen_enough: Callable[[], bool]) -> None:
        """It is time then, once enough was seen, or when somebody fails. Not much later at the
        latest: a fault may be that there is nothing to see."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed, seconds)
            self._changed.wait_for(lambda: self._failed or has_seen_enough(), MORE_SECONDS_MAX)
            self.over = True

    def wait_for_runs(self, count: int) -> None:
        """Until so many more have ended."""
        with self._changed:
            wanted = self._runs + count
            self._changed.wait_for(lambda: self._failed or self._runs >= wanted, RUNS_SECONDS_MAX)


Library = dict[str, bytes]
"""All bytes that were ever sent, by checksum."""


@dataclass
class User:
    """One client. `counts` says what it did, and what was refused as it may be."""

    number: int
    http: httpx.Client
    library: Library
    progress: Progress
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    shown: dict[str, Contents] = field(default_factory=lambda: {name: {} for name in BRANCHES})
    """What each branch holds at this client's paths."""
    commits: dict[str, tuple[str, Contents]] = field(default_factory=dict)
    """Of each commit that it made, the branch and what it holds at this client's paths."""
    tags: dict[str, str] = field(default_factory=dict)
    rescued: list[str] = field(default_factory=list)
    """Of its commits, what somebody else tagged."""
    made: int = 0

    def work(self) -> None:
        acts = (
            [self.upload] * 12
            + [self.read, self.remove, self.copy, self.copy_other] * 4
            + [self.commit] * 5
            + [self.merge] * 3
            + [self.list, self.tag] * 2
            + [self.share, self.look_at_tag]
        )
        if self.number % SLOW_EVERY == 0:
            acts.append(self.upload_slowly)
            self.upload_slowly()
        while not self.progress.over:
            self.rng.choice(acts)()

    def path(self, branch: str, name: str) -> str:
        return f"{self.prefix(branch)}{name}"

    def prefix(self, branch: str) -> str:
        return f"c{self.number:02}/{branch}/"

    def ask(
        self, method: str, place: str, expected: Collection[int | str], **options: Any
    ) -> httpx.Response:
        """One request. Of errors `expected` has the kinds, of all else the status."""
        answer = self.http.request(method, PREFIX + place, **options)
        seen: int | str = answer.status_code
        if answer.status_code >= 400:
            seen = str(answer.json()["kind"])
        assert seen in expected, f"{method} {place} {options.get('params')}: {answer.text}"
        return answer

    def upload(self) -> None:
        """New, or over what is there."""
        branch, name = self._draw_branch(), self.rng.choice(NAMES)
        self._store(branch, self.path(branch, name), self._new_data())

    def upload_slowly(self) -> None:
        """An upload during which whole runs of the collector pass."""
        branch, name = self._draw_branch(), self.rng.choice(NAMES)
        data = self._new_data() + bytes(SLOW_BYTES)

        def pieces() -> Iterator[bytes]:
            yield data[:-10]
            self.progress.wait_for_runs(2)
            yield data[-10:]

        self._store(branch, self.path(branch, name), data, sent=pieces())

    def share(self) -> None:
        """Write where others do; some only if nothing is there."""
        branch, path = self._draw_branch(), self.rng.choice(SHARED)
        headers = {"If-None-Match": "*"} if self.rng.random() < 0.3 else {}
        data = self._new_data()
        self.library[_checksum(data)] = data
        answer = self.ask(
            "POST",
            f"/branches/{branch}/objects",
            (201, "precondition_failed"),
            params={"path": path},
            content=data,
            headers=headers,
        )
        self._count("share", answer)

    def remove(self) -> None:
        branch, name = self._draw_branch(), self.rng.choice(NAMES)
        path = self.path(branch, name)
        answer = self.ask("DELETE", f"/branches/{branch}/objects", (204,), params={"path": path})
        self.shown[branch].pop(path, None)
        self._count("delete", answer)

    def copy(self) -> None:
        branch = self._draw_branch()
        source, target = (self.path(branch, self.rng.choice(NAMES)) for _ in range(2))
        is_there = source in self.shown[branch]
        expected = (201, "commit_expired") if is_there else ("object_not_found", "commit_expired")
        answer = self._copy(branch, target, None, source, expected)
        if answer.status_code == 201:
            assert answer.json()["checksum"] == self.shown[branch][source]
            self.shown[branch][target] = self.shown[branch][source]

    def copy_other(self) -> None:
        """From anybody, who may be at the same path."""
        branch, number = self._draw_branch(), self.rng.randrange(self.number + 1)
        ref = WORK[(number + self.rng.randrange(2)) % len(WORK)]
        other = f"c{number:02}/{ref}/{self.rng.choice(NAMES)}"
        source, target = self.rng.choice((other, SHARED[0])), self.path(branch, NAMES[0])
        expected = (201, "object_not_found", "commit_expired")
        answer = self._copy(branch, target, ref, source, expected)
        if answer.status_code == 201:
            checksum = answer.json()["checksum"]
            assert self.library[checksum]
            self.shown[branch][target] = checksum

    def _copy(
        self,
        branch: str,
        target: str,
        ref: str | None,
        source: str,
        expected: Collection[int | str],
    ) -> httpx.Response:
        answer = self.ask(
            "POST",
            f"/branches/{branch}/objects/copy",
            expected,
            params={"dest_path": target},
            json={"src_path": source, "src_ref": ref},
        )
        self._count("copy", answer)
        return answer

    def read(self) -> None:
        branch, name = self._draw_branch(), self.rng.choice(NAMES)
        path = self.path(branch, name)
        self.check_bytes(branch, path, self.shown[branch].get(path))

    def list(self) -> None:
        branch = self._draw_branch()
        self.check_list(branch, self.prefix(branch), self.shown[branch])

    def commit(self) -> None:
        branch = self._draw_branch()
        answer = self.ask(
            "POST",
            f"/branches/{branch}/commits",
            (201, "nothing_to_commit", "branch_moved"),
            json={"message": f"by {self.number}"},
        )
        self._count("commit", answer)
        if answer.status_code == 201:
            self.commits[answer.json()["id"]] = (branch, dict(self.shown[branch]))

    def merge(self) -> None:
        source = self.rng.choice(list(MERGES))
        strategy = self.rng.choice(("", "", "source-wins", "dest-wins"))
        answer = self.ask(
            "POST",
            f"/refs/{source}/merge/{MERGES[source]}",
            (200, *MERGE_REFUSALS),
            json={"strategy": strategy},
        )
        self._count("merge", answer)

    def tag(self) -> None:
        if len(self.tags) >= TAGS_MAX:
            self._count("untag", self.ask("DELETE", f"/tags/{self.tags.popitem()[0]}", (204,)))
            return
        if self.commits:
            commit_id = self.rng.choice(list(self.commits)[-2 * KEEP_LAST :])
            self.made += 1
            name = f"t{self.number}-{self.made}"
            wanted = {"id": name, "ref": commit_id}
            answer = self.ask("POST", "/tags", (201, "commit_expired"), json=wanted)
            self._count("tag", answer)
            if answer.status_code == 201:
                self.tags[name] = commit_id

    def look_at_tag(self) -> None:
        """What a tag holds stays whole."""
        for name, commit_id in self.tags.items():
            branch, contents = self.commits[commit_id]
            self.check_list(name, self.prefix(branch), contents)
            for path in list(contents)[:2]:
                self.check_bytes(name, path, contents[path])

    def check_bytes(self, ref: str, path: str, checksum: str | None) -> None:
        answer = self._ask_ref(ref, "/objects", path=path)
        self.counts["read"] += 1
        if checksum is None:
            assert answer.status_code == 404, f"{path} of {ref} is there"
        else:
            assert answer.status_code == 200, f"{path} of {ref}: {answer.text}"
            assert answer.content == self.library[checksum], f"{path} of {ref} has other bytes"

    def check_list(self, ref: str, prefix: str, contents: Contents) -> dict[str, str]:
        answer = self._ask_ref(ref, "/objects/ls", prefix=prefix, amount=1000)
        self.counts["list"] += 1
        results = answer.json()["results"]
        found = {each["path"]: each["checksum"] for each in results}
        assert found == contents, f"{ref}: {found} is not {contents}"
        return {each["path"]: each["physical_address"] for each in results}

    def _ask_ref(self, ref: str, place: str, **params: Any) -> httpx.Response:
        """A branch may move on so fast that its commit expires before it was read."""
        for _ in range(RETRIES):
            answer = self.http.get(f"{PREFIX}/refs/{ref}{place}", params=params)
            if answer.status_code != 410 or ref not in BRANCHES:
                break
            self.counts["read again"] += 1
        assert answer.status_code in (200, 404), f"{place} of {ref}: {answer.text}"
        return answer

    def _store(
        self, branch: str, path: str, data: bytes, *, sent: Iterator[bytes] | None = None
    ) -> None:
        checksum = _checksum(data)
        self.library[checksum] = data
        answer = self.ask(
            "POST",
            f"/branches/{branch}/objects",
            (201,),
            params={"path": path},
            content=data if sent is None else sent,
        )
        assert answer.json()["checksum"] == checksum
        self.shown[branch][path] = checksum
        self._count("upload" if sent is None else "slow upload", answer)

    def _new_data(self) -> bytes:
        self.made += 1
        return f"{self.number} {self.made} ".encode() + self.rng.randbytes(self.rng.randrange(999))

    def _draw_branch(self) -> str:
        """Two of them mostly. Where merges go to little is staged, or nothing could be merged."""
        if self.rng.random() < 0.02:
            return self.rng.choice(("next", "main"))
        return WORK[(self.number + self.rng.randrange(2)) % len(WORK)]

    def _count(self, what: str, answer: httpx.Response) -> None:
        refused = f": {answer.json()['kind']}" if answer.status_code >= 400 else ""
        self.counts[what + refused] += 1


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
