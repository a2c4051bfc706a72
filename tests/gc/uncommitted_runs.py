"""Runs of the collector, and what they may and must delete by the definition."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from hypothesis import event, note

from ebbtide.gc.collector import Collector
from ebbtide.gc.options import SIZES, Mode, Sizes
from ebbtide.gc.steps import Observer
from ebbtide.store.database.commits import find_commits
from tests.gc.lines import Reader
from tests.gc.slow_users import Witness
from tests.gc.uncommitted_model import UncommittedModel, is_among
from tests.gc.uncommitted_users import UploadUsers
from tests.gc.users import Act
from tests.support.memory import Stored
from tests.support.memory_world import MemoryWorld

Point = tuple[str, str]
Interludes = list[tuple[Point, Act]]
WITHIN_LISTING: Final[Point] = ("list", "within")
PLAN_POINTS: Final[list[Point]] = [
    ("list", "start"),
    WITHIN_LISTING,
    ("list", "end"),
    ("read", "end"),
    ("subtract", "end"),
]
SWEEP_POINTS: Final[list[Point]] = [
    ("fence", "start"),
    ("fence", "end"),
    ("recheck", "end"),
    ("forget", "end"),
    ("delete range", "end"),
    ("delete object", "start"),
]
CLOCK_PRECISION: Final = timedelta(seconds=2)
"""A date may stand for any instant of its second, and a run's clock for any of the last."""


@dataclass(slots=True)
class Planned:
    """A plan, and what the model knew when the metadata was read. `doomed` is what a sweep has to
    delete, unless somebody comes to need it; `deleted` what sweeps of it have deleted, `revived`
    what one of them found to be needed, and left for good."""

    began_at: datetime
    run_id: str = ""
    read_at: datetime | None = None
    commits: frozenset[str] = frozenset()
    expired: frozenset[str] = frozenset()
    forgettable: frozenset[str] = frozenset()
    reachable: frozenset[str] = frozenset()
    doomed: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    revived: set[str] = field(default_factory=set)
    swept_before: int = 0
    candidates: int = 0


class Stopped(Exception):
    """The collector's process has died."""


@dataclass(slots=True)
class Runs:
    """The runs of one history. `last_live` says when a run that was swept saw a file needed by
    commits, and `passed_over` how many runs were swept when one had left a file that it had to
    delete."""

    world: MemoryWorld
    model: UncommittedModel
    users: UploadUsers
    witness: Witness
    grace: timedelta
    last_live: dict[str, datetime] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    swept: int = 0
    modes: Counter[str] = field(default_factory=Counter)

    def check_needed(self) -> None:
        """All that is needed and was ever written is there, byte for byte."""
        objects, prefix, model = self.world.bucket.objects, self.world.prefix, self.model
        for address in model.needed(self.world.now):
            self.passed_over.pop(address, None)
            if address in model.files:
                stored = objects.get(f"{prefix}{address}")
                assert stored is not None, f"{address} is gone"
                assert stored.data == model.files[address]
        for url, data in model.external.items():
            assert objects[url.removeprefix(f"{self.world.bucket.url}/")].data == data
        for address, data in model.foreign.items():
            assert objects[f"{prefix}{address}"].data == data

    def plan(self, mode: Mode, interludes: Interludes) -> Planned:
        """Make a plan while users go on."""
        # No two runs begin at one instant, so that they can be told apart by their ids.
        self.world.clock.advance(timedelta(microseconds=1))
        planned = Planned(self.world.now, swept_before=self.swept)
        listed: set[str] = set()
        exempt: set[str] = set()

        def observe(step: str, moment: str) -> None:
            if (step, moment) == ("list", "start"):
                listed.update(self.world.files())
            if (step, moment) == ("read", "start"):
                self._read(planned, listed, exempt)
            self._interrupt(interludes, (step, moment))

        self.witness.at_listing = lambda: observe(*WITHIN_LISTING)
        report = self._collector(mode, observe).plan()
        self.witness.at_listing = None
        assert report.state == "planned", report.error
        assert report.commits["expired"] == len(planned.expired - self.model.closed.keys())
        assert mode != "clean" or report.mode == "clean"
        if report.mode == "incremental":
            planned.doomed -= exempt
        if self._sizes == "candidates":
            # They are dated after the mark, and what was sent once more by then is young.
            planned.doomed -= {
                address for address in planned.doomed if not self._is_old(address, planned.began_at)
            }
        planned.run_id, planned.candidates = report.run_id, report.counts["candidate"].objects
        self.modes[report.mode or ""] += 1
        event(f"{mode} run is {report.mode}")
        self.check_needed()
        return planned

    def _read(self, planned: Planned, listed: set[str], exempt: set[str]) -> None:
        """What the definition says at the instant at which a plan reads the metadata."""
        now, model = self.world.now, self.model
        planned.read_at = now
        planned.commits = frozenset(model.commits)
        planned.expired = frozenset(model.expired(now))
        planned.forgettable = planned.expired - model.recorded(now)
        planned.reachable = frozenset(model.reachable(now))
        planned.doomed = self.garbage(listed, began_at=planned.began_at)
        # What an incremental run does not find, or takes to be younger than it is.
        exempt |= model.late
        for address, at in self.last_live.items():
            if planned.began_at - at < self.grace + CLOCK_PRECISION:
                exempt.add(address)

    def garbage(self, files: set[str], *, began_at: datetime) -> set[str]:
        """What of these files a run that began then has to delete: nobody needs it, and it is older
        than the grace."""
        needed = self.model.needed(self.world.now) | self.model.tracked(self.world.now)
        return {
            address
            for address in files - self.model.foreign.keys()
            if not is_among(address, needed) and self._is_old(address, began_at)
        }

    def _is_old(self, address: str, began_at: datetime) -> bool:
        """Whether it is there, and older than the grace of a run that began then."""
        stored = self.world.bucket.objects.get(f"{self.world.prefix}{address}")
        if stored is None:
            return False
        return began_at - stored.written_at >= self.grace + CLOCK_PRECISION

    def sweep(self, planned: Planned, interludes: Interludes, stop: Point | None = None) -> bool:
        """Carry a plan out while users go on, and look at every delete; whether it came to its end,
        and did not `stop`."""
        # A copy is on record until the next fence, though nobody reads any more.
        due = planned.doomed - {address for address, _ in self.model.shared} - planned.revived

        def delete(address: str, stored: Stored) -> None:
            planned.deleted.add(address)
            self._judge(address, stored, planned)

        def observe(step: str, moment: str) -> None:
            if (step, moment) == ("fence", "end"):
                forgotten.update(self._fenced(planned, due))
            if (step, moment) == ("recheck", "end"):
                planned.revived |= planned.doomed - due - planned.deleted
            if (step, moment) == ("forget", "end"):
                self.model.forgotten.update(dict.fromkeys(forgotten, planned.run_id))
            self.witness.at_delete = None
            self._interrupt(interludes, (step, moment))
            if (step, moment) == stop:
                raise Stopped
            self.witness.at_delete = delete

        forgotten: set[str] = set()
        try:
            report = self._collector("auto", observe).sweep(planned.run_id)
        except Stopped:
            event(f"stopped at {stop}")
            self.check_needed()
            return False
        finally:
            self.witness.at_delete = None
        assert report.state == "swept", report.error
        counts = {name: count.objects for name, count in report.counts.items()}
        assert counts["failed"] == 0
        assert counts["deleted"] == len(planned.deleted)
        event(f"deleted: {bool(planned.deleted)}")
        event(f"revived: {counts['revived'] > 0}")
        self._settle(planned, due)
        self.check_needed()
        return True

    def _judge(self, address: str, stored: Stored, planned: Planned) -> None:
        """Whether a sweep may delete this at this moment."""
        assert address not in self.model.foreign
        assert address in self.model.files or "#" in address
        assert not is_among(address, self.model.needed(self.world.now)), f"{address} is needed"
        # What was sent to an address that nobody has any more may have been sent after the plan.
        if address not in self.model.late:
            assert planned.began_at - stored.written_at > self.grace, f"{address} is too young"

    def _fenced(self, planned: Planned, due: set[str]) -> set[str]:
        """Of what the plan held expired, what still is has been closed by the fence. What came to
        be needed is not due any more, nor what was needed by commits that nobody closed. The
        commits whose records go next."""
        now, model = self.world.now, self.model
        still = planned.expired & model.expired(now)
        forgotten = (planned.forgettable & still) - model.recorded(now)
        model.closed.update({each: planned.run_id for each in still if each not in model.closed})
        due -= model.needed(now)
        # Who began to read since the plan keeps the records of copies, and with them the files.
        planned.doomed -= model.tracked(now)
        for commit_id in model.commits.keys() - planned.commits:
            due -= set(model.commits[commit_id].contents.values())
            due -= model.pointers[commit_id]
        return set(forgotten - model.forgotten.keys())

    def _settle(self, planned: Planned, due: set[str]) -> None:
        """What was due is gone; what was due by the plan, after one run more at the latest."""
        left = self.world.files()
        assert not due & left, f"{sorted(due & left)} are still there"
        for address in planned.doomed & left:
            # Of runs that overlap, the later does not know what the earlier one ended.
            assert self.passed_over.get(address, planned.swept_before) >= planned.swept_before, (
                f"{address} is still there"
            )
            self.passed_over[address] = self.swept + 1
        self.swept += 1
        assert planned.read_at is not None
        # An incremental run dates what came back to life by the run in which it did.
        for address in planned.reachable | planned.revived:
            self.last_live[address] = max(
                self.last_live.get(address, planned.read_at), planned.read_at
            )

    def _collector(self, mode: Mode, observe: Observer) -> Collector:
        # The gate on shares has tests of its own: in so small a storage all may go.
        return self.world.collector(
            observer=observe,
            grace=self.grace,
            mode=mode,
            sizes=self._sizes,
            unsafe=True,
            allow_share=True,
        )

    @property
    def _sizes(self) -> Sizes:
        """What the next plan asks for: a run meets what one left that asked for something else."""
        return SIZES[self.modes.total() % len(SIZES)]

    def _interrupt(self, interludes: Interludes, point: Point) -> None:
        """Do what users do at this point."""
        chosen = [act for where, act in interludes if where == point]
        if chosen:
            self.check_needed()
        for act in chosen:
            self.users.do(act)
            note(f"at {point}: {act}")
            self.check_needed()

    def check_refs(self) -> None:
        """Every ref, and what is staged on it, reads back byte for byte."""
        reader = Reader(self.world)
        heads = [*self.model.branches.values(), *self.model.tags.values()]
        for head in heads:
            self._check_contents(reader, head.name, self.model.shown(head))
        assert reader.heads() == {head.name: head.commit_id for head in heads}

    def check_commits(self) -> None:
        """Every commit is intact, or closed and forgotten by the run that the definition says."""
        context = self.world.lake.context
        with context.metadata.snapshot() as tx:
            records = find_commits(tx, context.repository_id, list(self.model.commits))
        for commit_id in self.model.commits:
            record = records[commit_id]
            assert record.tombstoned_by == self.model.closed.get(commit_id)
            assert record.forgotten_by == self.model.forgotten.get(commit_id)

    def _check_contents(self, reader: Reader, ref: str, expected: Mapping[str, str]) -> None:
        """What a ref shows is what it must show, and its bytes are there."""
        entries = {entry.path: entry for entry in reader.lake.objects.walk(ref)}
        assert {path: entry.address for path, entry in entries.items()} == expected
        for entry in entries.values():
            data = self.model.external.get(entry.address)
            if data is None:
                data = self.world.lake.storage.get(entry.address)
                assert hashlib.sha256(data).hexdigest() == entry.checksum
                assert data == self.model.files[entry.address]
            assert len(data) == entry.size_bytes
