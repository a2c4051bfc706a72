"""The vocabulary of histories: what clients, runs and administrators do, each with what its answer
promises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, get_args

from ebbtide.errors import NotFound
from ebbtide.gc.plan import Plan
from ebbtide.gc.report import RunReport
from ebbtide.purge.purger import Purges
from ebbtide.run_request import Sizes
from ebbtide.store.collections.contents import ContentChange, FromRef, Located
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from tests.simulation import blocks, projects, uploads, versions
from tests.simulation.acting import Act
from tests.simulation.choosing import Nothing, named
from tests.simulation.definition import State, check_expired
from tests.simulation.exact import View, value
from tests.simulation.knowledge import Known
from tests.simulation.leaving import DATE_PRECISION, require_gone
from tests.simulation.scheduler import Violation
from tests.simulation.simulation import require_no_defect
from tests.simulation.world import LAKE, QUARANTINE, URL, Process
from tests.support.purging import request

PATHS: Final = ("a", "b")
ROOT: Final = f"{URL}/{LAKE}"
POLICIES: Final[tuple[dict[str, Any] | None, ...]] = (
    *({"default": {"keep_last": 1}},) * 8,
    {"default": {"keep_last": 2}},
    {"default": {"keep_within": "3h"}},
    None,
)


Operation = Callable[[Act], object]


# Clients


def save(act: Act) -> object:
    """Write one file or two, delete one perhaps, and commit."""
    lake, branch = act.process.lake(), act.pick(act.known.branches, 0)
    name = f"branch {branch}"
    act.moving(name)
    paths = [PATHS[(act.numbers[2] + each) % len(PATHS)] for each in range(1 + act.numbers[1] % 2)]
    deleted = PATHS[(act.numbers[2] + 1) % len(PATHS)] if act.numbers[3] % 3 == 0 else None

    def rule(view: View) -> View:
        for path in paths:
            view = view.put(branch, path, value(_data(act, path)))
        if deleted in view.shown(branch):
            view = view.delete(branch, deleted)
        return view.commit(branch)

    act.expects(lake, rule)
    for path in paths:
        lake.objects.put(branch, path, _data(act, path))
    if deleted is not None:
        with suppress(NotFound):
            lake.objects.delete(branch, deleted)
    commit = lake.commits.commit(branch, f"step {act.number}")
    return act.points_at(lake, name, commit.commit_id)


def _data(act: Act, path: str) -> bytes:
    return f"{path} of {act.number}".encode()


def stage(act: Act) -> object:
    """Write a file, copy or move it, and leave that uncommitted; or reset."""
    lake, branch = act.process.lake(), act.pick(act.known.branches, 0)
    path, other = act.pick(PATHS, 1), act.pick(PATHS, 2)
    kind = act.numbers[3] % 5
    if kind == 0:
        act.expects(lake, lambda view: view.put(branch, other, view.object_at(branch, path)))
        return lake.objects.copy(branch, other, branch, path)
    if kind == 1:
        act.expects(lake, lambda view: view.move(branch, other, path))
        return lake.objects.move(branch, other, path)
    if kind == 2:
        act.expects(lake, lambda view: view.reset(branch))
        lake.commits.reset(branch)
        return None
    act.expects(lake, lambda view: view.put(branch, path, value(_data(act, path))))
    return lake.objects.put(branch, path, _data(act, path))


def describe(act: Act) -> object:
    """Give an object other metadata, and leave that uncommitted."""
    lake, branch, path = act.process.lake(), act.pick(act.known.branches, 0), act.pick(PATHS, 1)
    metadata = {"Step": str(act.number)}
    act.expects(lake, lambda view: view.describe(branch, path, metadata))
    return lake.objects.set_metadata(branch, path, metadata)


def hard_reset(act: Act) -> object:
    """Move a branch to another branch or to any commit, and drop what is staged."""
    lake, target = act.process.lake(), act.pick(act.known.branches, 0)
    name = f"branch {target}"
    act.moving(name)
    source = act.pick([*act.known.branches, *act.known.commits], 1)
    act.expects(lake, lambda view: view.hard_reset(target, source, force=True))
    found = lake.commits.reset_to(target, source, force=True)
    return act.points_at(lake, name, found.commit_id)


def upload(act: Act) -> object:
    """Upload past the store, and link."""
    lake, branch = act.process.lake(), act.pick(act.known.branches, 0)
    path = act.pick(PATHS, 1)
    act.expects(lake, lambda view: view.put(branch, path, value(_data(act, path))))
    given = lake.addresses.get(branch, path)
    lake.storage.put(given.address, _data(act, path))
    return lake.addresses.link(branch, path, given.token)


def branch(act: Act) -> object:
    """Make a branch of a branch or of any commit."""
    return act.make_branch(f"branch-{act.number}")


def delete_branch(act: Act) -> object:
    """Put a branch in the trash."""
    lake, name = act.process.lake(), act.newest(act.known.branches[1:], 0)
    act.lessen(f"branch {name}")
    act.known.branches.remove(name)
    act.known.trashed.append(name)
    act.expects(lake, lambda view: view.delete_branch(name))
    return lake.branches.delete(name)


def restore_branch(act: Act) -> object:
    lake, name = act.process.lake(), act.newest(act.known.trashed, 0)
    act.begin(f"branch {name}")
    act.expects(lake, lambda view: view.restore_branch(name))
    found = lake.branches.restore(name)
    act.known.trashed.remove(name)
    act.known.branches.append(name)
    return act.points_at(lake, f"branch {name}", found.commit_id)


def tag(act: Act) -> object:
    """Tag a branch or a commit, or delete a tag."""
    lake = act.process.lake()
    if act.known.tags and act.numbers[1] % 3 == 0:
        name = act.newest(act.known.tags, 0)
        act.lessen(f"tag {name}")
        act.known.tags.remove(name)
        act.expects(lake, lambda view: view.delete_tag(name))
        return lake.tags.delete(name)
    name, ref = f"tag-{act.number}", act.pick([*act.known.branches, *act.known.commits], 0)
    act.begin(f"tag {name}")
    act.expects(lake, lambda view: view.tag(name, ref))
    made = lake.tags.create(name, ref)
    act.known.tags.append(name)
    return act.points_at(lake, f"tag {name}", made.commit_id)


def hold(act: Act) -> object:
    """Hold a commit, or release one."""
    lake = act.process.lake()
    if act.known.held and act.numbers[1] % 3 == 0:
        commit_id = act.newest(act.known.held, 0)
        act.take_back(f"hold on {commit_id}")
        act.known.held.remove(commit_id)
        act.expects(lake, lambda view: view.release(commit_id))
        lake.retention.release(commit_id)
        return commit_id
    commit_id = act.newest(act.known.commits, 0)
    act.begin(f"hold on {commit_id}")
    act.expects(lake, lambda view: view.hold(commit_id))
    found = lake.retention.hold(commit_id, "simulated")
    act.points_at(lake, f"hold on {found.commit_id}", found.commit_id)
    act.known.held.append(found.commit_id)
    return found.commit_id


def policy(act: Act) -> object:
    lake, chosen = act.process.lake(), act.pick(POLICIES, 0)
    if chosen is not None:
        return lake.retention.set(chosen)
    lake.retention.unset()
    return None


def merge(act: Act) -> object:
    """Merge one branch into another, or revert a commit."""
    lake = act.process.lake()
    source, target = act.newest(act.known.branches, 0), act.pick(act.known.branches, 1)
    name = f"branch {target}"
    act.moving(name)
    if act.numbers[2] % 2:
        act.expects(lake, lambda view: view.merge(source, target, source_wins=True))
        made = lake.commits.merge(source, target, strategy="source-wins")
    else:
        reverted = act.newest(act.known.commits, 3)
        act.expects(lake, lambda view: view.revert(target, reverted))
        made = lake.commits.revert(target, reverted)
    return act.points_at(lake, name, made.commit_id)


def sign(act: Act) -> object:
    """Have a locator of what a branch or commit has."""
    lake = act.process.lake()
    commits = act.known.commits[-3:] if act.numbers[2] % 3 == 0 else []
    ref = act.pick(commits or [f"{each}@" for each in act.known.branches], 0)
    path = act.pick([entry.path for entry in lake.objects.walk(ref)], 1)
    signed = lake.locators.sign_path(ref, path)
    return f"{projects.note_locator(act, lake, signed, path)} until {signed.expires_at}"


def upload_located(act: Act) -> object:
    """Write an object of which nothing but its locator knows."""
    lake = act.process.lake()
    signed = lake.locators.upload(f"located of {act.number}".encode())
    return projects.note_locator(act, lake, signed, "object")


def collect_files(act: Act) -> object:
    """Make a collection of a locator, or of a branch."""
    lake = act.process.lake()
    good = [each for each in act.known.locators if each.until > act.world.clock.now]
    if good and act.numbers[1] % 4:
        given = act.newest(good, 0)
        change = ContentChange([Located({given.path: given.token})])
    else:
        change = ContentChange([FromRef(act.pick(act.known.branches, 0))])
    project_id = lake.projects.create(f"project-{act.number}").project_id
    made = lake.collections.create(project_id, "collection", change)
    act.begin(f"collection {made.collection_id}")
    act.known.collections.append(made.collection_id)
    _collected(act, lake, made.collection_id)
    return made.collection_id


def change_collection(act: Act) -> object:
    """Update a collection, delete it, or bring it back."""
    lake, collection_id = act.process.lake(), act.newest(act.known.collections, 0)
    name = f"collection {collection_id}"
    kind = act.numbers[1] % 3
    if kind == 0:
        act.lessen(name)
        return lake.collections.delete(collection_id)
    if kind == 1:
        act.begin(name)
        answer = lake.collections.restore(collection_id)
    else:
        act.moving(name)
        change = ContentChange([FromRef(act.pick(act.known.branches, 2))], replaces=True)
        answer = lake.collections.update(collection_id, change)
    _collected(act, lake, collection_id)
    return answer.version


def _collected(act: Act, lake: Repository, collection_id: str) -> None:
    found = act.world.database.plain.execute(
        "SELECT content_id FROM collections WHERE collection_id = ?", (collection_id,)
    ).fetchone()
    # The repository may have ended before the answer came.
    content = found and act.checker.content_of(lake.info.repository_id, found[0])
    if content:
        name = f"collection {collection_id}"
        act.known.points_at(name, act.number, lake.info.repository_id, content.keys)


# Runs


def _chosen(act: Act) -> dict[str, Any]:
    aside: timedelta | None = (None, QUARANTINE)[act.numbers[0] % 2]
    return {
        "quarantine": aside,
        "mode": ("clean", "auto")[act.numbers[1] % 2],
        "sizes": act.pick(get_args(Sizes), 3),
    }


def run(act: Act) -> object:
    """Plan and sweep."""
    options, lake, began = _chosen(act), act.process.lake(), act.world.clock.now
    act.expects(lake, _unchanged, forgets=True)
    before = act.state(lake)

    def known(plan: Plan) -> bool:
        act.known.runs.append(plan.run_id)
        _note_aside(act, plan.run_id, options)
        _note_doomed(act, plan.run_id, before, began, plan.expired_count)
        return True

    report = act.process.collector(**options).run(known)
    if report.state == "swept":
        act.check_closed(lake, before, began, report.run_id)
        if before is not None and act.is_exact and report.mode == "clean":
            require_gone(act.checker, began)
            _plan_again(act, options, began)
    return _swept(act, report)


def _plan_again(act: Act, options: Mapping[str, Any], began: datetime) -> None:
    """A second plan, now and then, names only what has become old since. Raises Violation."""
    if act.numbers[2] % 4 == 0:
        found = act.process.collector(**options).plan()
        count = found.counts["candidate"].objects
        grace, bucket = act.world.settings.grace, act.world.bucket
        since, until = began - grace - DATE_PRECISION, act.world.clock.now - grace
        grown = sum(since <= each.written_at <= until for each in bucket.objects.values())
        if act.is_exact and (found.state != "planned" or count > grown):
            raise Violation("again", f"the plan after a run is {found.state}, with {count} files")


def _unchanged(view: View) -> View:
    """Runs change no ref, and nothing that is staged."""
    return view


def _note_doomed(
    act: Act, run_id: str, before: State | None, began: datetime, expired_count: int
) -> None:
    if before is not None and act.is_exact:
        act.known.doomed[run_id] = frozenset(before.expired(began))
        check_expired(before, (began, act.world.clock.now), expired_count)


def plan(act: Act) -> object:
    lake, began = act.process.lake(), act.world.clock.now
    act.expects(lake, _unchanged)
    before = act.state(lake)
    report = act.process.collector(**_chosen(act)).plan()
    if report.state == "planned":
        act.known.runs.append(report.run_id)
        _note_doomed(act, report.run_id, before, began, report.commits["expired"])
    return _told(report)


def sweep(act: Act) -> object:
    """Sweep a plan that is there, perhaps again."""
    run_id, options = act.newest(act.known.runs, 2), _chosen(act)
    _note_aside(act, run_id, options)
    lake, began = act.process.lake(), act.world.clock.now
    act.expects(lake, _unchanged, forgets=True)
    before = act.state(lake)
    report = act.process.collector(**options).sweep(run_id)
    if report.state == "swept":
        act.check_closed(lake, before, began, run_id)
    return _swept(act, report)


def run_aside(act: Act) -> object:
    """Plan, and move aside."""
    act.numbers = (1, *act.numbers[1:])
    return run(act)


def _note_aside(act: Act, run_id: str, options: Mapping[str, Any]) -> None:
    act.begin(f"quarantine of {run_id}")
    if options["quarantine"] is not None and run_id not in act.known.aside:
        act.known.aside.append(run_id)


def undo(act: Act) -> object:
    run_id = act.newest(act.known.aside, 2)
    act.take_back(f"quarantine of {run_id}")
    return _told(act.process.collector().undo(run_id))


def purge_aside(act: Act) -> object:
    """Delete for good what a run has aside."""
    run_id = act.newest(act.known.aside, 2)
    act.take_back(f"quarantine of {run_id}")
    return _told(act.process.collector().purge(run_id))


def _swept(act: Act, report: RunReport) -> str:
    """What a run has aside stays until its time."""
    held = report.quarantine or {}
    if report.state != "swept" or held.get("state") != "held":
        return _told(report)
    repository_id = act.process.lake().info.repository_id
    name = f"quarantine of {report.run_id}"
    # Who undoes it, or sweeps it too, may have been faster than the answer.
    if act.known.since(name, act.number) is None:
        start = f"{LAKE}/_ebbtide/gc/runs/{report.run_id}/quarantine/"
        keys = [key for key in act.world.bucket.objects if key.startswith(start)]
        act.known.promise(name, repository_id, keys, datetime.fromisoformat(held["until"]))
    return _told(report)


def _told(report: RunReport) -> str:
    require_no_defect((report.error or {}).get("kind", ""), str(report.error))
    error = "" if report.error is None else f", {report.error}"
    return f"{report.run_id} {report.state} {report.mode}{error}"


def _lake_id(act: Act) -> str:
    return act.process.lake().info.repository_id


def reclaim(act: Act) -> object:
    """One pass of a server's reclaimer."""
    return Reclaimer(act.process.store).once()


# Administrators


def purge(act: Act) -> object:
    """Purge a path wherever it is."""
    ref, path = act.pick(act.known.branches, 0), act.pick(PATHS, 1)
    act.known.purged_paths.add(path)
    purges = Purges(act.process.store)
    row = purges.begin(LAKE, request(f"{ref}:{path}", all_history=True))
    act.known.purges.append(row.purge_id)
    return purges.carry_out(row.purge_id).row.state


def purge_whole(act: Act) -> object:
    act.known.lessen_all(_lake_id(act), act.world.clock.now)
    purges = Purges(act.process.store)
    row = purges.begin(LAKE, request(repository=True))
    # Perhaps another repository has the name by now.
    act.known.lessen_all(row.repository_id, act.world.clock.now)
    act.known.purges.append(row.purge_id)
    return purges.carry_out(row.purge_id).row.state


def resume_purge(act: Act) -> object:
    purges = Purges(act.process.store)
    return purges.carry_out(act.newest(act.known.purges, 0)).row.state


def delete_repository(act: Act) -> object:
    """Put the repository in the trash."""
    act.known.lessen_all(_lake_id(act), act.world.clock.now + act.world.trash)
    deleted = act.process.store.catalog.delete(LAKE)
    # Perhaps another repository had the name by then.
    act.known.lessen_all(deleted.info.repository_id, act.world.clock.now + act.world.trash)
    return deleted.state


def restore_repository(act: Act) -> object:
    return act.process.store.catalog.restore(LAKE).state


def remove(act: Act) -> object:
    """Collect a repository that is gone."""
    remover = act.process.remover()
    if remover is None:
        raise Nothing
    return _told(remover.run())


def create_repository(act: Act) -> object:
    """Make another repository in the place of one that ended."""
    if act.known.repositories:
        raise Nothing
    act.begin("branch main")
    made = act.process.store.create_repository(LAKE, storage_url=ROOT)
    if made.info.repository_id in act.known.ended:
        return made.info.repository_id
    fresh = Known()
    for name in ("branches", "trashed", "tags", "commits", "held", "collections", "runs", "aside"):
        setattr(act.known, name, getattr(fresh, name))
    act.known.repositories.append(made.info.repository_id)
    found = made.branches.get("main")
    act.points_at(made, "branch main", found.commit_id)
    return made.info.repository_id


def rotate(act: Act) -> object:
    """Sign with a new key, and retire older ones."""
    return act.process.store.signing_keys.rotate().key_id


# A copy of the database


def copy_database(act: Act) -> object:
    """Take a copy, as a backup does."""
    act.world.copy_database()
    act.world.has_copy = True
    return None


def copied_run(act: Act) -> object:
    """A run over the copy, on the same storage."""
    if not act.world.has_copy:
        raise Nothing
    act.known.copied_run = True
    other = Process(act.world, act.world.copied)
    return _told(other.collector(**_chosen(act)).run())


OPERATIONS: Final[Mapping[str, Operation]] = {
    **versions.OPERATIONS,
    **uploads.OPERATIONS,
    **projects.OPERATIONS,
    **blocks.OPERATIONS,
    **named(
        *(save, stage, describe, hard_reset, upload, branch, delete_branch, restore_branch),
        *(tag, hold, policy, merge, sign, upload_located, collect_files, change_collection),
        *(
            run,
            run_aside,
            plan,
            sweep,
            undo,
            purge_aside,
            reclaim,
            purge,
            purge_whole,
            resume_purge,
        ),
        *(delete_repository, restore_repository, remove, create_repository),
        *(rotate, copy_database, copied_run),
    ),
}


INSTEAD: Final[Mapping[str, str]] = {
    **uploads.INSTEAD,
    **projects.INSTEAD,
    **blocks.INSTEAD,
    "delete branch": "branch",
    "restore branch": "branch",
    "change collection": "collect files",
    "collect files": "sign",
    **dict.fromkeys(("sweep", "undo", "purge aside"), "run aside"),
    "resume purge": "purge whole",
    "create repository": "purge whole",
    "remove": "delete repository",
    "copied run": "copy database",
}
"""What is done in place of an operation for which there is nothing to do yet; a save for others."""


def perform(name: str, act: Act) -> object:
    """Do it, or what it needs first, or what that needs. Raises EbbtideError."""
    while True:
        try:
            return OPERATIONS[name](act)
        except Nothing:
            name = INSTEAD.get(name, "save")
