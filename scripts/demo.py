"""The demo: a year of history, a policy, a run, and a proof that nothing else went.

Run it through `scripts/demo`. What it builds and checks goes through the Python interface; what a
user would type is run as the `ebbtide` command, shown after a `$`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ebbtide.cli import run as ebbtide
from ebbtide.cli.text import count_text, size_text
from ebbtide.errors import Gone
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.uploads import NewObject

REPOSITORY = "library"
FILES_MAX = 240
FILE_BYTES_MAX = 100_000
WEEKS = 52
CHANGED_EACH_WEEK = 9
SETTINGS = {"EBBTIDE_LEASE_TTL": "1s", "EBBTIDE_TRASH_TIME": "0s"}

Version = tuple[Path, int]
"""A file of this machine, and how often it was changed since; together they give its bytes."""


def content(version: Version) -> bytes:
    """The bytes of a version, made again from the file each time."""
    source, revision = version
    return source.read_bytes() + f"# revision {revision}\n".encode() * (revision > 0)


@dataclass
class History:
    """What was written: what each branch shows now, and what each commit must show for ever."""

    repository: Repository
    tips: dict[str, dict[str, Version]] = field(default_factory=dict)
    commits: dict[str, dict[str, Version]] = field(default_factory=dict)

    def put(self, branch: str, versions: dict[str, Version]) -> None:
        """Upload versions to a branch."""
        items = (NewObject(path, content(version)) for path, version in versions.items())
        self.repository.objects.put_many(branch, items)
        self.tips[branch] |= versions

    def delete(self, branch: str, paths: list[str]) -> None:
        """Delete paths from a branch."""
        self.repository.objects.delete_many(branch, paths)
        for path in paths:
            self.tips[branch].pop(path)

    def commit(self, branch: str, message: str, date: datetime) -> str:
        """Commit what is staged, dated as if it had been made then."""
        made = self.repository.commits.commit(branch, message, date=date)
        self.commits[made.commit_id] = dict(self.tips[branch])
        return made.commit_id

    def branch(self, name: str) -> None:
        """Make a branch on what main shows."""
        self.repository.branches.create(name, "main")
        self.tips[name] = dict(self.tips["main"])

    def merge(self, source: str, date: datetime) -> str:
        """Merge a branch that changed other paths than main did since."""
        made = self.repository.commits.merge(source, "main", message=f"Merge {source}", date=date)
        self.tips["main"] |= self.tips[source]
        self.commits[made.commit_id] = dict(self.tips["main"])
        return made.commit_id


def main() -> int:
    """Run the demo; the exit code."""
    os.environ |= SETTINGS
    directory = _directory()
    started = time.monotonic()
    _say(f"A store in {directory}, and a year of history in it")
    with Store.init(directory) as store:
        history = _build(store)
        os.environ["EBBTIDE_STORE"] = str(directory)
        _set_policy()
        before = _measure(directory)
        _collect()
        after = _measure(directory)
        _compare(before, after)
        _verify(history)
    _next(directory, seconds=time.monotonic() - started)
    return 0


def _directory() -> Path:
    if len(sys.argv) > 1:
        directory = Path(sys.argv[1]).resolve()
        if directory.exists():
            sys.exit(f"error: {directory} is there already: name one that is not")
        return directory
    return Path(tempfile.mkdtemp(prefix="ebbtide-demo-"))


def _build(store: Store) -> History:
    """Weekly releases on main, a feature that is merged, an experiment that is thrown away."""
    files = list(_source_files())
    history = History(store.create_repository(REPOSITORY))
    history.tips["main"] = {}
    first_day = datetime.now(UTC) - timedelta(weeks=WEEKS)
    paths = sorted(files)
    history.put("main", {path: (files_of, 0) for path, files_of in _versions(paths)})
    history.commit("main", "Release 0", first_day)
    for week in range(1, WEEKS):
        date = first_day + timedelta(weeks=week)
        _change(history, "main", paths, week)
        history.commit("main", f"Release {week}", date)
    return history


if __name__ == "__main__":
    sys.exit(main())
