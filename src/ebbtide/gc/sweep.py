"""Sweeps a plan: fence, re-check, forget, delete, record.

The order makes it safe. The fence closes the expired commits, so that no new reference to a
candidate can appear. The re-check then finds the candidates that became live before the fence: it
reads the trees that are live now and that the plan's mark did not read. Only then the sweep deletes
records, trees, nodes and objects, in this order. A crash therefore leaves garbage, and never a
reference to a missing file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from ebbtide.errors import Conflict, EbbtideError, Failed, Incomplete, Refused
from ebbtide.formats.base import RepositoryFormat, RunHold
from ebbtide.formats.capabilities import (
    Fencing,
    batch_max_of,
    forget,
    guard_of,
    lost_of,
    records_of,
)
from ebbtide.gc import quarantine
from ebbtide.gc.candidates import needed_of, without_purged
from ebbtide.gc.committed import Mark, write_trees
from ebbtide.gc.decisions import Fenced, Unread, closing, decide_at_fence, decide_behind
from ebbtide.gc.deletes import Outcomes, delete_parts, record_needed, tally
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.gates import check_planned
from ebbtide.gc.hold import check_storage
from ebbtide.gc.keys import KeyArray, rows_of
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Count, Part, PartRows, read_part, split
from ebbtide.gc.plan import Plan, commits_of
from ebbtide.gc.planner import check_times
from ebbtide.gc.quarantine import Quarantine, keep_records
from ebbtide.gc.quarantines import Recovered, chosen, read_protected, restore
from ebbtide.gc.runs import FENCE_FILE, REPORT_FILE, RunFolder, RunFolders, TaskFiles
from ebbtide.gc.steps import Steps
from ebbtide.retention.decision import Roots
from ebbtide.storage import Retained

ATTEMPTS: Final = 5
"""The maximum number of attempts of fence and recheck. A sweep repeats both if a commit that it
would forget is needed again after the fence."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a sweep. `untried` counts the candidates that it did not try to delete.
    `retained` is what the storage keeps of deleted files, unless `versions_deleted`. `recovered`
    tells of needed files that were absent."""

    outcomes: Outcomes
    forgotten_count: int
    untried: int
    retained: Retained
    versions_deleted: bool
    recovered: Recovered = field(default_factory=Recovered)


@dataclass(slots=True)
class Sweep:
    """One attempt to sweep one plan. `recovered` tells of needed files that were absent, also
    after an error."""

    engine: Engine
    repository: RepositoryFormat
    plan: Plan
    folder: RunFolder
    hold: RunHold
    options: RunOptions
    steps: Steps
    recovered: Recovered = field(default_factory=Recovered)
    _closed: frozenset[str] = frozenset()
    _open: frozenset[str] = frozenset()
    _roots: Roots | None = None

    def execute(self) -> Swept:
        """Sweeps the plan. Raises Refused if a gate refuses; this attempt has deleted nothing then.

        Raises Incomplete if the sweep stops later. The deletes until then are on record.
        """
        with nothing_deleted():
            retained = self.repository.storage.retained()
            forgotten_count, quarantined = self._prepare()
        try:
            left = self._delete(quarantined=quarantined)
            with self.steps("count"):
                outcomes = tally(self.engine, self.folder)
        except EbbtideError as error:
            self._check_lost(error.message)
            raise incomplete(error) from error
        self._check_lost("all candidates were tried")
        untried = sum(part.rows for part in self.plan.candidates if part.kind in left)
        untried -= sum(outcomes.tried.get(kind, Count()).objects for kind in left)
        versions_deleted = self.options.delete_versions
        return Swept(outcomes, forgotten_count, untried, retained, versions_deleted, self.recovered)

    def _check_lost(self, happened: str) -> None:
        """Raises Incomplete if a file that this sweep has deleted or moved is needed again, or if
        that cannot be found out."""
        try:
            guard = guard_of(self.repository, self._open, self._closed)
            lost = lost_of(self.repository, guard)
        except EbbtideError as error:
            raise Incomplete(
                "incomplete",
                f"{happened}; but it is not known whether a file that is gone is needed again: "
                f"{error.message}. Sweep the run again",
            ) from error
        if lost is not None:
            raise Incomplete(
                "incomplete",
                f"{happened}; but {lost}: 'ebbtide gc undo {self.plan.identity.repository_name} "
                f"{self.plan.run_id}' brings it back from the quarantine. Without one, restore it "
                "from a backup or from an older version of the object",
            )

    def _prepare(self) -> tuple[int, bool]:
        """Does all steps before the first delete. Returns the number of forgotten commits, and
        whether files are quarantined. Raises as `execute` does."""
        with self.steps("check"):
            self._check_state()
            check_times(self.repository, self.options)
            planned = commits_of(self.folder, self.plan.commits)
            check_parts(self.engine, self.folder, [planned, *self.plan.candidates])
        self._restore(list(self.plan.absent))
        quarantined = self._quarantines()
        is_first = self.folder.get_json(FENCE_FILE) is None
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.steps("fence"):
                    fenced = self._fence()
                with self.steps("recheck"):
                    self._revive(self._recheck(fenced))
            except (EbbtideError, KeyboardInterrupt):
                self._lift(is_first=is_first)
                raise
            try:
                with self.steps("forget"):
                    if quarantined:
                        assert self._roots is not None
                        recorded = self._recorded(fenced)
                        records = records_of(self.repository, self._roots, recorded)
                        keep_records(self.folder, self.hold.run_epoch, records)
                    forget(self.repository, self.hold, self.plan.run_id, fenced.forgettable)
                return len(fenced.forgettable | fenced.forgotten), quarantined
            except EbbtideError as error:
                if error.kind != "repository_changed":
                    raise incomplete(error) from error
                # No record was deleted: check again which candidates are needed now.
                self._lift(is_first=is_first)
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt ends it")

    def _lift(self, *, is_first: bool) -> None:
        """Opens the commits that this attempt closed, since it deleted nothing.

        Commits that an earlier attempt closed stay closed: that attempt or another run may have
        deleted their data. The commits are opened only while this run has its lease: a run that
        took the lease may delete data of the closed commits. If they cannot be opened, the error is
        ignored, so that the first error is reported. The next sweep of the run continues then.
        """
        with suppress(EbbtideError):
            self.hold.check()
            if isinstance(self.repository, Fencing):
                self.repository.lift(self.hold, self.plan.run_id, self._closed)
            if is_first:
                self.folder.storage.delete([self.folder.address(FENCE_FILE)])

    def _recorded(self, fenced: Fenced) -> frozenset[str]:
        """Returns the commits whose records an undo needs."""
        is_fenced = isinstance(self.repository, Fencing)
        return fenced.forgettable if is_fenced else fenced.forgettable | fenced.closed

    def _check_state(self) -> None:
        report = self.folder.get_json(REPORT_FILE)
        state = None if report is None else report.get("state")
        if state in ("swept", "undone"):
            raise Conflict(
                "plan_used", f"run {self.plan.run_id} was {state} already: make a new plan"
            )
        if self.plan.refusal is not None and not self.options.allow_share:
            raise Refused(*self.plan.refusal)

    def _quarantines(self) -> bool:
        """Whether candidates are quarantined: if an earlier attempt did so, or if the options say
        so. This is recorded before the first file is moved."""
        storage, lasts = self.repository.storage, self.options.quarantine
        versions = self.options.delete_versions
        found = quarantine.read(storage, self.plan.run_id)
        if found is not None:
            if versions and not found.delete_versions:
                quarantine.write(storage, replace(found, delete_versions=True))
            return True
        if lasts is None:
            return False
        until = self.repository.now() + lasts
        record = Quarantine(self.plan.run_id, "held", until, delete_versions=versions)
        quarantine.write(storage, record)
        return True

    @property
    def _folders(self) -> RunFolders:
        return RunFolders(self.repository, self.options.run_dir)

    def _fence(self) -> Fenced:
        """Closes the expired commits of the plan that are still expired, in one transaction."""
        decided: list[Fenced] = []

        def choose(roots: Roots) -> Collection[str]:
            check_planned(self.repository, self.plan.run_id, self.folder, roots)
            count = self.plan.counts["listed"].objects
            fenced = decide_at_fence(self.folder, roots, self.plan.commits, listed_count=count)
            decided.append(fenced)
            self._closed, self._roots = fenced.closed, roots
            return fenced.closed

        if isinstance(self.repository, Fencing):
            self.repository.fence(self.hold, self.plan.run_id, choose)
        else:
            self.hold.check()
            with self.repository.reading(self.plan.cutoff) as reading:
                choose(reading.roots())
        fenced = decided[-1]
        self.folder.put_json(
            FENCE_FILE,
            {
                "fenced_at": fenced.unread.now.isoformat(),
                "run_epoch": self.hold.run_epoch,
                "kept_after_all": sorted(fenced.needed),
            },
        )
        return fenced

    def _recheck(self, fenced: Fenced) -> KeyArray:
        """Returns the keys of the candidates that are needed now."""
        # A copy of the database may have written OWNER at the moment of this run's first check.
        check_storage(self.repository)
        name = f"recheck-{self.hold.run_epoch:06d}"

        def behind(roots: Roots) -> Unread:
            if not isinstance(self.repository, Fencing):
                roots = closing(roots, self._closed)
            self._open = frozenset(each.commit_id for each in roots.commits) - self._closed
            return decide_behind(self.folder, roots, self.plan.commits, fenced.unread)

        unread, protected = read_protected(
            self.repository,
            self.folder,
            self.plan.candidates,
            behind,
            cutoff=self.plan.cutoff,
            name=name,
        )
        protected += quarantine.held_back(
            self._folders, self.folder, now=unread.now, name=f"{name}/kept"
        )
        # The plan already subtracted its own protected parts. A part with an equal checksum has
        # the same addresses.
        before = {part.checksum for part in self.plan.protected}
        protected = [part for part in protected if part.checksum not in before]
        live = None
        if unread.trees.recorded or unread.trees.companions:
            place = TaskFiles(self.repository.storage, self.repository.layout, self.folder, name)
            prefix = place.prefixed("known")
            known = write_trees(self.folder, prefix, unread.trees, unread.checksums)
            live = Mark(self.engine, place, known).live()
        if live is None and not protected:
            return quarantine.NO_KEYS
        candidates = self.plan.candidates
        return needed_of(self.engine, self.folder, candidates, live=live, protected=protected)

    def _revive(self, back: KeyArray) -> None:
        """Restores candidates with these keys that are absent, and records all of them as needed,
        so that they are not deleted."""
        if len(back):
            name, candidates = f"recheck-{self.hold.run_epoch:06d}", self.plan.candidates
            needed = chosen(self.engine, self.folder, candidates, back, name=name)
            self._restore(without_purged(self.repository, self.folder, needed))
            storage, epoch = self.repository.storage, self.hold.run_epoch
            record_needed(self.engine, storage, self.folder, needed, epoch=epoch)

    def _restore(self, needed: list[Part]) -> None:
        """Restores those of the needed files that are absent from quarantines."""
        self.hold.check()
        self.recovered += restore(self.engine, self.repository, self.folder, needed)

    def _delete(self, *, quarantined: bool) -> Sequence[str]:
        """Deletes or quarantines the candidates kind by kind, in `delete_order`. Returns the kinds
        that were not tried.

        If a delete fails, later kinds are not tried: the file that stays may refer to them. A
        locked file does not stay: it is hidden.
        """
        order = self.repository.layout.delete_order
        guard = guard_of(self.repository, self._open, self._closed)
        candidates = self.plan.candidates
        meter, done = self.engine.meter, 0
        for position, kind in enumerate(order):
            parts = [part for part in candidates if part.kind == kind]
            if not parts:
                continue
            with self.steps(f"delete {kind}"):
                meter.begin("files", rows_of(candidates), done=done)
                failed = delete_parts(
                    self.engine,
                    storage=self.repository.storage,
                    folder=self.folder,
                    parts=parts,
                    epoch=self.hold.run_epoch,
                    run_id=self.plan.run_id,
                    guard=guard,
                    looks_again=self.plan.inventory_url is not None,
                    quarantined=quarantined,
                    with_versions=self.options.delete_versions,
                    batch_max=batch_max_of(self.repository),
                )
            done += rows_of(parts)
            if failed:
                return order[position + 1 :]
        return ()


def check_parts(engine: Engine, folder: RunFolder, parts: Sequence[Part]) -> None:
    """Raises Refused `plan_corrupt` if one of the `parts` is missing or damaged."""

    def work(_number: int, task: Sequence[Part], answer: PartRows) -> None:
        for part in task:
            try:
                read_part(folder, part.name, part.checksum)
            except Refused as error:
                answer.failed(error)

    engine.run(split(parts, tasks=engine.task_count), work)


@contextmanager
def nothing_deleted() -> Iterator[None]:
    """Adds to the error of a full disk that nothing was deleted. A user who frees space needs to
    know this."""
    try:
        yield
    except Failed as error:
        if error.kind != "disk_full":
            raise
        raise Failed(error.kind, f"{error.message}. The run deleted nothing") from error


def incomplete(error: EbbtideError) -> Incomplete:
    """Returns the error of a sweep that failed after its first irreversible change."""
    if isinstance(error, Incomplete):
        return error
    return Incomplete(
        "incomplete",
        f"the sweep was stopped: {error.message}. Its deletes until then are on record: sweep the "
        "run again, it continues where it stopped",
    )
