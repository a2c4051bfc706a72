"""A copy of the database lacks what was done since it was taken, however little time passed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from ebbtide.errors import Failed
from ebbtide.store.collections.contents import ContentChange, Files, FromRef
from ebbtide.store.embedded import Store
from ebbtide.store.repositories.owner import (
    EPOCHS_BEHIND_MAX,
    EPOCHS_REMEMBERED,
    OWNER_ADDRESS,
    Ownership,
)
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.copies import OpenedWorld, listing
from tests.support.dying import Died
from tests.support.faulty import FaultyStorage, Hook
from tests.support.histories import PlannedWorld, Template, kept_contents
from tests.support.refusals import check_refused
from tests.support.world import DAY, START

THREADS: Final = 4
WAIT_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class Before:
    """What there is when the copy is taken."""

    store: Store
    lake: Repository
    old: str
    project_id: str
    trashed_project_id: str
    collection_id: str
    trashed_collection_id: str


CHANGES: Final[dict[str, Callable[[Before], object]]] = {
    "commit": lambda now: now.lake.commits.commit("main", "of what was staged"),
    "merge": lambda now: now.lake.commits.merge("ahead", "behind"),
    "branch": lambda now: now.lake.branches.create("rescue", now.old),
    "branch restored": lambda now: now.lake.branches.restore("trashed"),
    "branch that stays": lambda now: now.lake.branches.set_expiry("expiring", None),
    "tag": lambda now: now.lake.tags.create("rescued", now.old),
    "tag restored": lambda now: now.lake.tags.restore("trashed-tag"),
    "locator": lambda now: now.lake.locators.sign_path(now.old, "one"),
    "hold": lambda now: now.lake.retention.hold(now.old, "needed"),
    "policy": lambda now: now.lake.retention.set({"default": "keep"}),
    "no policy": lambda now: now.lake.retention.unset(),
    "days": lambda now: now.lake.retention.set({"default": "300d"}),
    "project restored": lambda now: now.lake.projects.restore(now.trashed_project_id),
    "project that stays": lambda now: now.lake.projects.update(
        now.project_id, expires_at=START + 9 * DAY
    ),
    "collection": lambda now: now.lake.collections.create(
        now.project_id, "of the old", ContentChange([FromRef(now.old)])
    ),
    "collection changed": lambda now: now.lake.collections.update(
        now.collection_id, ContentChange([FromRef(now.old)])
    ),
    "collection kept": lambda now: now.lake.collections.update(
        now.collection_id, replication_desired=2
    ),
    "collection restored": lambda now: now.lake.collections.restore(now.trashed_collection_id),
    "repository that stays": lambda now: now.store.catalog.set_expiry("lake", START + 9 * DAY),
}


def prepare(world: PlannedWorld) -> Before:
    lake = world.lake
    lake.branches.create("behind", "main")
    lake.branches.create("ahead", "main")
    lake.objects.put("ahead", "ahead", b"ahead")
    lake.commits.commit("ahead", "ahead")
    lake.branches.create("trashed", "main")
    lake.branches.delete("trashed")
    lake.branches.create("expiring", "main", expires_at=START + DAY)
    lake.tags.create("trashed-tag", "main")
    lake.tags.delete("trashed-tag")
    project_id = lake.projects.create("project").project_id
    trashed_project_id = lake.projects.create("trashed").project_id
    lake.projects.delete(trashed_project_id)
    content = ContentChange([Files([NewObject("file", b"collected")])])
    collection_id = lake.collections.create(project_id, "one", content).collection_id
    trashed = lake.collections.create(project_id, "two", content).collection_id
    lake.collections.delete(trashed)
    old = world.history.expired
    return Before(world.store, lake, old, project_id, trashed_project_id, collection_id, trashed)


def test_it_is_refused_after_any_change_of_what_is_kept(template: Template, tmp_path: Path) -> None:
    original = PlannedWorld(template, tmp_path / "original", trash_time=DAY)
    before = prepare(original)
    for change, carry_out in CHANGES.items():
        # Within this minute no write moves the epoch by itself.
        original.lake.objects.put("main", "staged last", b"staged last")
        shutil.copytree(
            original.directory / "store",
            tmp_path / change / "store",
            ignore=shutil.ignore_patterns("storage"),
        )
        carry_out(before)
        files = listing(original.root)
        contents = kept_contents(original, original.history)
        clone = OpenedWorld(tmp_path / change, now=START + timedelta(hours=9))
        for report in (clone.collector().plan(), clone.collector().sweep(template.run_id)):
            check_refused(report, "storage_foreign", "restored from a backup or copied")
        clone.close()
        assert listing(original.root) == files
        assert kept_contents(original, original.history) == contents
    original.lake.objects.put("main", "more", b"more")
    original.lake.commits.commit("main", "the original goes on")
    assert original.collector().plan().state == "planned"
    original.close()


def with_owner_hook(
    planned: PlannedWorld, *, before: Hook | None = None, after: Hook | None = None
) -> Repository:
    """The repository as a process has it to whose writes of OWNER something happens."""
    context = planned.lake.context
    hooks = {name: hook for name, hook in (("before", before), ("after", after)) if hook}
    storage = FaultyStorage(context.storage, **hooks)
    ownership = Ownership(
        context.metadata,
        store_id=planned.store.store_id,
        repository_id=context.repository_id,
        storage=storage,
        host_now=planned.clock.host_now,
    )
    return Repository(replace(context, storage=storage, ownership=ownership))


def at_owner(action: Callable[[], object]) -> Hook:
    def hook(method: str, address: str) -> None:
        if method == "replace" and address == OWNER_ADDRESS:
            action()

    return hook


def fail(error: BaseException) -> Hook:
    def raising() -> None:
        raise error

    return at_owner(raising)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_dies_at_the_trace_locks_nobody_out(
    planned: PlannedWorld, moment: str
) -> None:
    lake = with_owner_hook(planned, **{moment: fail(Died())})
    with pytest.raises(Died):
        lake.branches.create("made", "main")
    assert planned.lake.branches.get("made").name == "made"
    planned.lake.branches.create("next", "made")
    assert planned.collector().plan().state == "planned"


def test_who_cannot_leave_a_trace_is_told_that_the_change_is_made(planned: PlannedWorld) -> None:
    error = Failed("storage_error", "the disk is full")
    lake = with_owner_hook(planned, before=fail(error))
    with pytest.raises(Failed, match=r"the change is made.*the disk is full") as failed:
        lake.tags.create("made", "main")
    assert failed.value.kind == "storage_error"
    assert planned.lake.tags.get("made").name == "made"


def test_traces_that_cannot_be_left_lock_nobody_out(planned: PlannedWorld) -> None:
    ownership = with_owner_hook(
        planned, before=fail(Failed("storage_error", "no"))
    ).context.ownership
    for _ in range(EPOCHS_REMEMBERED + EPOCHS_BEHIND_MAX):
        with pytest.raises(Failed):
            ownership.move()
    planned.lake.branches.create("made", "main")
    assert planned.collector().plan().state == "planned"


def test_changes_of_several_threads_share_a_trace(
    planned: PlannedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, go = threading.Semaphore(0), threading.Event()
    written: list[int] = []

    def count_writes() -> None:
        written.append(len(written))
        if len(written) == 1:
            came.release()
            assert go.wait(WAIT_SECONDS_MAX)

    ownership = with_owner_hook(planned, before=at_owner(count_writes)).context.ownership
    threads = [threading.Thread(target=ownership.announce) for _ in range(1 + THREADS)]
    threads[0].start()
    assert came.acquire(timeout=WAIT_SECONDS_MAX)
    monkeypatch.setattr(ownership, "_tickets", Noticed(ownership._tickets, came.release))
    for thread in threads[1:]:
        thread.start()
    for _ in threads[1:]:
        assert came.acquire(timeout=WAIT_SECONDS_MAX)
    # All have come after the first began to write: none of them may rely on what it writes.
    go.set()
    for thread in threads:
        thread.join(WAIT_SECONDS_MAX)
    assert len(written) == 2


@dataclass(slots=True)
class Noticed:
    """Numbers, of which somebody is told that they were drawn."""

    numbers: Iterator[int]
    notice: Callable[[], None]

    def __next__(self) -> int:
        number = next(self.numbers)
        self.notice()
        return number
