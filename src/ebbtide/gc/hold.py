"""A run's hold on a repository: its lease, the epoch before it, and the clocks that it depends on.

The lease is one file on the storage, with a heartbeat. `run_epoch` grows each time that a run takes
the repository. Each write replaces only the version that its writer knows. Therefore only one of
two simultaneous takers succeeds, and a former holder notices its loss. A repository with a database
has a lease of its own (`Held`). Not for: the records of runs (`runs`).
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from ebbtide.clock import SystemClock
from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput, NotFound, Refused
from ebbtide.formats.base import (
    EPOCH_ADDRESS,
    Clocks,
    RepositoryFormat,
    RunHold,
    storage_clocks,
)
from ebbtide.formats.capabilities import (
    Checking,
    Clocked,
    CommitHistory,
    Held,
    UndoesExpiry,
    WithExpiry,
)
from ebbtide.formats.roots import check_unowned
from ebbtide.gc.options import RunOptions
from ebbtide.ids import descending_id
from ebbtide.processes import is_dead, this_process
from ebbtide.retention.expiry import Expiry, ExpiryRequest
from ebbtide.storage import Storage, open_storage


def hold(
    repository: RepositoryFormat, run_id: str, options: RunOptions, *, deletes: bool = True
) -> AbstractContextManager[RunHold]:
    """Takes the repository for one run, for as long as the context is open.

    A run that `deletes` nothing, and whose files go to another place, takes its lease there: it
    need not write to the repository's storage. Raises Refused `run_in_progress`.
    """
    if isinstance(repository, Held):
        return repository.hold(run_id)
    is_elsewhere = options.run_dir is not None and not deletes
    return hold_storage(
        open_storage(str(options.run_dir)) if is_elsewhere else repository.storage,
        run_id=run_id,
        heartbeat=options.heartbeat,
        lease_ttl=options.lease_ttl,
        skew_max=options.skew_max,
        epoch_min=_last_epoch(repository.storage),
        clock=repository.now,
    )


def _last_epoch(storage: Storage) -> int:
    """Returns the highest epoch that a run announced, in case the lease's file was deleted."""
    try:
        return int(json.loads(storage.get(EPOCH_ADDRESS))["run_epoch"])
    except (NotFound, ValueError, KeyError, TypeError):
        return 0


def expire(
    repository: WithExpiry,
    request: ExpiryRequest,
    options: RunOptions,
    expire_id: str | None = None,
) -> tuple[CommitHistory, Expiry]:
    """Carries out an expiry, as `WithExpiry.expire` does, while no run has the repository. Also
    raises Refused `run_in_progress`."""
    expire_id = expire_id or descending_id(repository.now())
    with hold(repository, expire_id, options) as held:
        return repository.expire(request, held, expire_id)


def undo_expiry(
    repository: WithExpiry, expire_id: str, options: RunOptions
) -> Mapping[str, Sequence[int | str]]:
    """Undoes an expiry, as `UndoesExpiry.undo_expiry` does, while no run has the repository. Also
    raises Refused `run_in_progress`, and InvalidInput `invalid_argument` if it cannot be undone."""
    if not isinstance(repository, UndoesExpiry):
        raise InvalidInput(
            "invalid_argument",
            f"an expiry of {repository.identity.format_name} repositories cannot be undone",
        )
    with hold(repository, descending_id(repository.now()), options) as held:
        return repository.undo_expiry(expire_id, held)


def running_id(repository: RepositoryFormat, *, lease_ttl: timedelta) -> str | None:
    """Returns the id of the run that holds the repository now, in any process; or None. Raises
    Refused `run_in_progress` if the lease's file is damaged."""
    if isinstance(repository, Held):
        return repository.running_id()
    return holder_of(repository.storage, lease_ttl=lease_ttl, now=repository.now())


def check_storage(repository: RepositoryFormat) -> None:
    """Raises Refused if the storage belongs to another database or repository (`storage_foreign`,
    `nested_root`), or if the repository refuses a run. Called under a hold."""
    if not isinstance(repository, Held):
        check_unowned(repository.storage)
    if isinstance(repository, Checking):
        repository.check_storage()


def clocks_of(repository: RepositoryFormat, options: RunOptions) -> Clocks:
    """Reads the clocks that a run depends on, after the run has announced its epoch: the date of
    this file is the storage's clock. A run whose files go to another place may not have written it.
    There this host's time is used instead."""
    if isinstance(repository, Held):
        return repository.clocks()
    if options.run_dir is not None:
        now = repository.now()
        return Clocks(host=now, database=now, storage=now)
    clock = repository.clock if isinstance(repository, Clocked) else SystemClock()
    return storage_clocks(repository.storage, EPOCH_ADDRESS, clock)


LEASE_ADDRESS: Final = "_ebbtide/gc/LEASE"

_NONCE_BYTES: Final = 8
_HOST_NOW: Final = SystemClock().host_now


class _Record(BaseModel):
    """The content of the file. `run_id` is None if no run holds the repository.

    The nonce distinguishes holds that are equal otherwise: of one run, by one process, taken at the
    same instant.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    run_id: str | None
    run_epoch: int
    holder: str | None
    beat_at: AwareDatetime
    nonce: str = ""

    def is_hold_of(self, other: _Record) -> bool:
        """Whether both are the same hold, at any of its heartbeats."""
        mine, its = ((each.run_id, each.run_epoch, each.nonce) for each in (self, other))
        return mine == its


@dataclass(frozen=True, slots=True)
class _Found:
    """The content of the file, and its version on the storage."""

    record: _Record
    version: str

    @property
    def is_free(self) -> bool:
        """Whether it is certain that no run holds the repository any more."""
        return self.record.run_id is None or is_dead(self.record.holder)


@dataclass(frozen=True, slots=True)
class _LeaseFile:
    """The file of a hold on the storage."""

    storage: Storage

    def read(self) -> _Found | None:
        """Returns the present file, or None if there is none. Raises Refused `run_in_progress` if
        it is damaged, because a run may hold the repository."""
        try:
            data, version = self.storage.get_versioned(LEASE_ADDRESS)
        except NotFound:
            return None
        try:
            return _Found(_Record.model_validate_json(data), version)
        except ValidationError:
            raise Refused(
                "run_in_progress",
                f"{self.storage.url}/{LEASE_ADDRESS} is damaged, so that a run may hold the "
                "repository: make sure that no run is active, then delete the file",
            ) from None

    def create(self, record: _Record) -> None:
        """Writes the first version. Raises Conflict if the file exists."""
        self.storage.put(LEASE_ADDRESS, _encoded(record), create_only=True)

    def replace(self, record: _Record, version: str) -> str:
        """Writes the next version, and returns its name. Raises Conflict if `version` is no longer
        the present one."""
        return self.storage.replace(LEASE_ADDRESS, _encoded(record), version=version)


@dataclass(frozen=True, slots=True)
class _Times:
    """The durations of a hold, and the clock that it uses."""

    heartbeat: timedelta
    lease_ttl: timedelta
    skew_max: timedelta
    clock: Callable[[], datetime]
    wait: Callable[[float], None]


class StorageHold:
    """A run's hold on a repository, and the thread of its heartbeats. Made by `hold_storage`.

    Its safety does not depend on clocks that agree. A holder gives up if, by its own clock, it was
    silent for `lease_ttl`. The first write of another run makes the holder's next write fail.
    """

    def __init__(self, file: _LeaseFile, record: _Record, version: str, times: _Times) -> None:
        self._file = file
        self._record = record
        self._version = version
        self._times = times
        self._beat_at = record.beat_at
        self._lost: Refused | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="heartbeat", daemon=True)

    @property
    def run_epoch(self) -> int:
        """A number that grows each time that a run takes the repository."""
        return self._record.run_epoch

    def check(self) -> None:
        """Raises Refused `lease_lost` if another run has taken the repository, or may have taken
        it because no heartbeat reached the storage for `lease_ttl`. Raises Failed if the storage
        fails."""
        if self._lost is not None:
            raise self._lost
        silence = self._times.clock() - self._beat_at
        if silence >= self._times.lease_ttl:
            raise Refused(
                "lease_lost",
                f"no heartbeat of run {self._record.run_id} reached the storage for "
                f"{silence.total_seconds():.0f} s, so that another run may take the repository: "
                "this run deletes nothing more",
            )
        self._read_own()

    def start(self) -> None:
        """Starts the heartbeats."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the heartbeats, and frees the repository if this hold still has it.

        A failure of the storage is ignored. The run has done its work, or has its own error, and
        the next run finds this process gone or silent.
        """
        self._ended.set()
        self._thread.join()
        released = self._record.model_copy(
            update={"run_id": None, "holder": None, "beat_at": self._times.clock()}
        )
        with suppress(EbbtideError):
            try:
                self._file.replace(released, self._version)
            except (Conflict, Failed):
                self._file.replace(released, self._read_own().version)

    def _keep(self) -> None:
        while not self._ended.wait(self._times.heartbeat.total_seconds()):
            try:
                self._beat()
            except Refused as error:
                self._lost = error
                return
            except EbbtideError:
                # A failed heartbeat does not lose the lease yet: `check` measures the silence.
                continue

    def _beat(self) -> None:
        """Sends a heartbeat. Raises Refused `lease_lost` if the file is no longer this hold's."""
        record = self._record.model_copy(update={"beat_at": self._times.clock()})
        try:
            found = _Found(record, self._file.replace(record, self._version))
        except (Conflict, Failed):
            # The write may have succeeded: perhaps its answer was lost, and the client sent it
            # again and met its own write.
            found = self._read_own()
        self._version = found.version
        self._beat_at = found.record.beat_at

    def _read_own(self) -> _Found:
        """Returns the present file. Raises Refused `lease_lost` if it is another hold's, damaged or
        gone."""
        try:
            found = self._file.read()
        except Refused:
            found = None
        if found is None or not found.record.is_hold_of(self._record):
            holder = found.record.run_id if found is not None else None
            raise Refused(
                "lease_lost",
                f"run {self._record.run_id} lost the repository to another run "
                f"({holder or 'none'}): it deletes nothing more",
            )
        return found


@contextmanager
def hold_storage(
    storage: Storage,
    *,
    run_id: str,
    heartbeat: timedelta,
    lease_ttl: timedelta,
    skew_max: timedelta,
    epoch_min: int = 0,
    clock: Callable[[], datetime] = _HOST_NOW,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[StorageHold]:
    """Holds the repository at the root of `storage` for one run, until the block ends.

    The file is written anew every `heartbeat`, which should be a small part of `lease_ttl`. The
    epoch is above `epoch_min`, even if the file was deleted. `clock` returns this host's time, UTC,
    and `wait` sleeps for seconds.

    Raises Refused `run_in_progress` while another run holds the repository. A run that ended
    without a release is replaced at once if it ran on this machine, or if it was silent for longer
    than `lease_ttl` and `skew_max` together. If its clock and this one may differ too much to tell,
    the file is watched for `lease_ttl` first. Raises Failed (`storage_error`) if the storage fails.
    """
    times = _Times(heartbeat, lease_ttl, skew_max, clock, wait)
    file = _LeaseFile(storage)
    hold = _take(file, run_id, times, epoch_min=epoch_min)
    hold.start()
    try:
        yield hold
    finally:
        hold.stop()


def holder_of(storage: Storage, *, lease_ttl: timedelta, now: datetime) -> str | None:
    """Returns the id of the run that holds the repository, or None. A run that has been silent for
    `lease_ttl` holds nothing, nor does one whose heartbeat is that far in the future, because a
    clock was ahead. Raises Refused `run_in_progress` if the file is damaged."""
    found = _LeaseFile(storage).read()
    if found is None or found.is_free or abs(now - found.record.beat_at) >= lease_ttl:
        return None
    return found.record.run_id


def _take(file: _LeaseFile, run_id: str, times: _Times, *, epoch_min: int) -> StorageHold:
    """Writes the file for a run. Raises Refused `run_in_progress` if another run was faster."""
    last = _free(file, times)
    record = _Record(
        run_id=run_id,
        run_epoch=max(epoch_min, 0 if last is None else last.record.run_epoch) + 1,
        holder=this_process(),
        beat_at=times.clock(),
        nonce=secrets.token_hex(_NONCE_BYTES),
    )
    # A conflict may be with this call's own write, which the client repeated after a lost answer.
    with suppress(Conflict):
        if last is not None:
            return StorageHold(file, record, file.replace(record, last.version), times)
        file.create(record)
    found = file.read()
    if found is None or not found.record.is_hold_of(record):
        raise Refused(
            "run_in_progress",
            "another run took the repository at the same moment: wait for it to end",
            run_id=found.record.run_id if found is not None else None,
        )
    return StorageHold(file, record, found.version, times)


def _free(file: _LeaseFile, times: _Times) -> _Found | None:
    """Returns the file if no run holds the repository any more; None if there is no file.

    Raises Refused `run_in_progress` while a run holds the repository.
    """
    found = file.read()
    if found is None or found.is_free:
        return found
    silence = times.clock() - found.record.beat_at
    if silence > times.lease_ttl + times.skew_max:
        return found
    if abs(silence) < times.lease_ttl:
        raise _in_progress(found, times, f"{max(silence.total_seconds(), 0):.0f} s ago")
    # The holder's clock may be behind this host's clock, or ahead. Then only a silence that is
    # observed here is certain: a run that was silent for `lease_ttl` has given up by its own clock.
    for _ in range(math.ceil(times.lease_ttl / times.heartbeat)):
        times.wait(times.heartbeat.total_seconds())
        seen = file.read()
        if seen is None or seen.version != found.version:
            if seen is None or seen.is_free:
                return seen
            raise _in_progress(seen, times, "just now, by a clock that differs from this host's")
    return found


def _in_progress(found: _Found, times: _Times, last_heard: str) -> Refused:
    return Refused(
        "run_in_progress",
        f"run {found.record.run_id} holds the repository (last heard of {last_heard}): wait for "
        f"it to end, or {times.lease_ttl.total_seconds():.0f} s after it died",
        run_id=found.record.run_id,
    )


def _encoded(record: _Record) -> bytes:
    return record.model_dump_json().encode()
