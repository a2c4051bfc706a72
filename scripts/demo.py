"""The demo: a year of history, a policy, a run, and a proof that nothing else went.

Run it through `scripts/demo`. What a user would type is shown after a `$`, and run just so.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import islice
from pathlib import Path

from ebbtide.errors import Gone
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.program.app import run
from ebbtide.retention.decision import decide
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from ebbtide.text import count_text, short_id, size_text

NAME = "library"
FILES = 240
FILE_BYTES_MAX = 60_000
WEEKS = 52
SETTINGS = {"EBBTIDE_LEASE_TTL": "1s", "EBBTIDE_TRASH_TIME": "0s"}
GRACE = ("--grace", "1s", "--unsafe")

Version = tuple[Path, int]
"""A file of this machine, and in which week it was changed; together they give its bytes."""


def content(version: Version) -> bytes:
    """The bytes of a version, made from the file anew each time."""
    source, week = version
    return source.read_bytes() + f"# changed in week {week}\n".encode() * (week > 0)


@dataclass
class History:
    """What was written: what each branch shows now, and what each commit is to show for ever."""

    repository: Repository
    begins: datetime
    tips: dict[str, dict[str, Version]] = field(default_factory=dict)
    commits: dict[str, dict[str, Version]] = field(default_factory=dict)

    def put(self, branch: str, versions: dict[str, Version]) -> None:
        """Upload versions to a branch."""
        items = (NewObject(path, content(version)) for path, version in versions.items())
        self.repository.objects.put_many(branch, items)
        self.tips[branch] |= versions

    def change(self, branch: str, paths: Iterable[str], week: int) -> None:
        """Overwrite paths of a branch with what they are from this week on."""
        self.put(branch, {path: (self.tips[branch][path][0], week) for path in paths})

    def delete(self, branch: str, path: str) -> None:
        """Delete a path from a branch."""
        self.repository.objects.delete(branch, path)
        del self.tips[branch][path]

    def commit(self, branch: str, message: str, *, week: float) -> str:
        """Commit what is staged, dated as if it had been made in that week."""
        date = self.begins + timedelta(weeks=week)
        made = self.repository.commits.commit(branch, message, date=date)
        self.commits[made.commit_id] = dict(self.tips[branch])
        return made.commit_id

    def fork(self, branch: str) -> None:
        """Make a branch on what main shows."""
        self.repository.branches.create(branch, "main")
        self.tips[branch] = dict(self.tips["main"])

    def tag(self, name: str) -> None:
        """Name what main shows."""
        self.repository.tags.create(name, "main")

    def merge(self, branch: str, paths: Iterable[str], *, week: float) -> None:
        """Merge a branch on which `paths`, and nothing else, were changed."""
        date = self.begins + timedelta(weeks=week)
        made = self.repository.commits.merge(branch, "main", date=date)
        self.tips["main"] |= {path: self.tips[branch][path] for path in paths}
        self.commits[made.commit_id] = dict(self.tips["main"])


def main() -> int:
    """Run the demo; the exit code."""
    directory = _directory()
    os.environ |= SETTINGS | {"EBBTIDE_STORE": str(directory)}
    started = time.monotonic()
    with Store.init(directory) as store:
        history = _build(store)
        _set_policy()
        kept = _kept(store, history)
        before = _measure(history.repository)
        _collect()
        _show_difference(before, _measure(history.repository))
        _prove(history, kept)
    _say("What to try next")
    print(_NEXT.format(directory=directory, name=NAME).strip())
    print(f"\nThat took {time.monotonic() - started:.0f} seconds.")
    return 0


def _directory() -> Path:
    if len(sys.argv) < 2:
        return Path(tempfile.mkdtemp(prefix="ebbtide-demo-"))
    directory = Path(sys.argv[1]).resolve()
    if directory.exists():
        sys.exit(f"error: {directory} exists already: name a directory that does not")
    return directory


def _build(store: Store) -> History:
    """Weekly releases on main, a feature that is merged, an experiment that is thrown away."""
    _say("A year of history, made of Python's own library")
    sources = _source_files()
    paths = list(sources)
    hot, slow, feature = paths[:10], paths[10:-20], paths[-20:]
    history = History(store.create_repository(NAME), datetime.now(UTC) - timedelta(weeks=WEEKS))
    history.tips["main"] = {}
    history.put("main", {path: (source, 0) for path, source in sources.items()})
    history.commit("main", "Release 0", week=0)
    events: dict[int, Callable[[], None]] = {
        10: lambda: history.tag("v1.0"),
        30: lambda: _merge_feature(history, feature),
        40: lambda: _throw_experiment_away(history, sources),
    }
    for week in range(1, WEEKS):
        history.change("main", hot, week)
        history.change(
            "main", [path for path in slow[week::WEEKS] if path in history.tips["main"]], week
        )
        if week % 4 == 0:
            history.delete("main", slow[week])
        history.commit("main", f"Release {week}", week=week)
        events.get(week, lambda: None)()
    print(
        f"{WEEKS} weekly releases of {count_text(FILES, 'file')} on main, 10 of them changed every "
        "week;\na feature branch that was merged, an experiment that was deleted, a tag v1.0:\n"
        f"{count_text(len(history.commits), 'commit')}, dated over the past year"
    )
    return history


def _source_files() -> dict[str, Path]:
    """Path in the repository → file, for modules of Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    found = (
        file
        for file in sorted(library.rglob("*.py"))
        if "site-packages" not in file.parts and 0 < file.stat().st_size <= FILE_BYTES_MAX
    )
    return {f"lib/{file.relative_to(library).as_posix()}": file for file in islice(found, FILES)}


def _merge_feature(history: History, paths: list[str]) -> None:
    history.fork("feature")
    for number in (1, 2, 3):
        history.change("feature", paths[number::3], 30)
        history.commit("feature", f"Feature, part {number}", week=30 + number / 10)
    history.merge("feature", paths[1:], week=30.5)


def _throw_experiment_away(history: History, sources: dict[str, Path]) -> None:
    history.fork("experiment")
    for number in (1, 2):
        files = list(sources.items())[number * 40 : number * 40 + 40]
        history.put("experiment", {f"try{number}/{path}": (source, 40) for path, source in files})
        history.commit("experiment", f"Experiment {number}", week=40 + number / 10)
    history.repository.branches.delete("experiment")


def _set_policy() -> None:
    _say("The policy: which commits are kept")
    print(
        "On main: all commits for 30 days, then the last release of each of 12 months.\n"
        "Elsewhere: 7 days. Tags keep their commit.\n"
    )
    rule = "main=keep_within:30d,keep_monthly:12"
    _shell("retention", "set", NAME, "--default", "7d", "--branch", rule)


def _kept(store: Store, history: History) -> list[str]:
    """Show what the policy keeps and why; the ids of the commits that it keeps."""
    _say("The effect: each commit that is kept, and the reason")
    print("(The former head of a branch is kept for one lease: here a second, not an hour.)\n")
    time.sleep(2)
    _shell("retention", "show", NAME, "--commits", only="kept")
    context = history.repository.context
    with EmbeddedRepository(context, store_id=store.store_id).reading() as reading:
        active = decide(reading.roots()).active
    return [commit_id for commit_id in history.commits if commit_id in active]


def _collect() -> None:
    _say("The plan: the files to be deleted. It deletes nothing")
    print(
        "(The files are seconds old, so the grace is set to 1 second instead of 24 hours. On a\n"
        "repository that is in use, leave it alone.)\n"
    )
    _shell("gc", "plan", NAME, *GRACE)
    _say("The sweep: it carries out exactly this plan")
    _shell("gc", "sweep", NAME, *GRACE, "--quarantine", "none", "--yes")


def _measure(repository: Repository) -> tuple[int, int]:
    """Files and bytes under the storage root, without the records of runs."""
    listed = (row for batch in repository.storage.list() for row in batch.to_pylist())
    sizes = [row["size_bytes"] for row in listed if not row["address"].startswith("_ebbtide/gc/")]
    return len(sizes), sum(sizes)


def _show_difference(before: tuple[int, int], after: tuple[int, int]) -> None:
    _say("The storage, counted before and after")
    for label, (count, bytes_total) in (("before", before), ("after", after)):
        print(f"{label:<8}{count_text(count, 'file'):>12}{size_text(bytes_total):>12}")
    share = 1 - after[1] / before[1]
    print(f"{share:.0%} of the bytes are free again")


def _prove(history: History, kept: list[str]) -> None:
    """Read every file of every commit that was kept, and compare it with what was written."""
    _say("The proof")
    objects = history.repository.objects
    compared = 0
    for commit_id in kept:
        expected = history.commits[commit_id]
        if [entry.path for entry in objects.walk(commit_id)] != sorted(expected):
            sys.exit(f"FAILED: commit {commit_id} does not show the paths that it had")
        for path, version in expected.items():
            if objects.get(commit_id, path) != content(version):
                sys.exit(f"FAILED: {path} of commit {commit_id} is not what was written")
            compared += 1
    print(f"{count_text(len(kept), 'commit')} were kept. All their files, {compared:,} in all,")
    print("were read back, and equal the written files byte for byte.")
    gone = [commit_id for commit_id in history.commits if commit_id not in kept]
    _require_gone(history, gone)
    print(f"\nThe {len(gone)} others answer with an error that says why:\n")
    path = next(iter(history.commits[gone[-1]]))
    _shell("fs", "cat", NAME, short_id(gone[-1]), path, expected=1)


def _require_gone(history: History, gone: list[str]) -> None:
    for commit_id in gone:
        try:
            history.repository.objects.get(commit_id, next(iter(history.commits[commit_id])))
        except Gone:
            continue
        sys.exit(f"FAILED: commit {commit_id} has expired, and can still be read")


def _shell(*arguments: str, only: str = "", expected: int = 0) -> None:
    """Run an ebbtide command in this process, shown as it would be typed.

    Of its answer the lines with `only` are shown. An error that is `expected` is shown in place.
    """
    print("$ ebbtide " + " ".join(arguments) + (f" | grep {only}" if only else ""), flush=True)
    written = StringIO()
    with (
        redirect_stdout(written) if only else nullcontext(),
        redirect_stderr(sys.stdout) if expected else nullcontext(),
    ):
        code = run(arguments)
    lines = written.getvalue().splitlines(keepends=True)
    print("".join(line for line in lines if only in line), end="")
    if code != expected:
        sys.exit(f"FAILED: that ended with exit code {code}")


def _say(title: str) -> None:
    print(f"\n── {title} {'─' * (76 - len(title))}\n", flush=True)


_NEXT = """
The store stays in {directory}. To continue with it:

    export EBBTIDE_STORE={directory} PATH="$PWD/.venv/bin:$PATH"
    ebbtide log {name} main --limit 10        the expired ones are still in it
    ebbtide fs ls {name} v1.0 lib/            the files that the tag keeps
    ebbtide gc runs {name}                    runs, with the number of deleted files
    ebbtide --help

README.md has a tour with your own data. docs/safety.md says why a run deletes no live file.
"""


if __name__ == "__main__":
    sys.exit(main())
