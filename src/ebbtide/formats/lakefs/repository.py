"""A repository of a lakeFS server as the collector sees it.

The server has refs and commits; its storage namespace has all files. The files of runs are under
`_ebbtide/` in the namespace. lakeFS cannot close a commit: the fence only chooses the expired
commits. The recheck after it, and the check of the refs before each batch of deletes, find
candidates that are needed again. Not for: the API of lakeFS that `ebbtide serve` answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import instants
from ebbtide.clock import Clock
from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.base import Fencing, Identity, RunHold
from ebbtide.formats.holds import read_holds, write_holds
from ebbtide.formats.lakefs.guards import LakefsGuard
from ebbtide.formats.lakefs.layout import COMMITTED_PREFIX, LakefsLayout
from ebbtide.formats.lakefs.reading import LakefsReading
from ebbtide.formats.lakefs.refs import LakefsHistory, read_history
from ebbtide.formats.lakefs.restaged import restaged
from ebbtide.formats.lakefs.rules import (
    change_policy,
    read_policy,
    remove_policy,
    write_policy,
    written_policy,
)
from ebbtide.formats.lakefs.server import LakefsServer
from ebbtide.formats.lakefs.urls import LOCAL, Namespace
from ebbtide.formats.lakefs.walk import LakefsWalk
from ebbtide.formats.plain import PlainRepository
from ebbtide.model import Commit
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots
from ebbtide.settings import Settings
from ebbtide.storage import Storage, open_storage

FORMAT_NAME: Final = "lakefs"
TOKEN_TTL: Final = timedelta(hours=24)
"""How long an address that a client got for an upload can be linked."""
GRACE: Final = TOKEN_TTL + timedelta(hours=1)
"""The shortest safe grace. It includes an hour for differing clocks and slow commits."""
CLOSED_FILE: Final = "closed.json"
REPORT: Final = "report.json"
PLAN: Final = "plan.json"
SWEPT: Final = "swept"
_UNIFIED_PREFIX: Final = "_lakefs/retention/gc/unified/"
_SUMMARY: Final = "summary.json"


def find_namespace(server: LakefsServer, local_path: str | None) -> Namespace:
    """Returns the namespace of the server's files. `local_path` is the server's directory for
    objects, if it keeps them in a directory.

    Raises as `LakefsServer.repository` does, and InvalidInput `invalid_setting` if the directory is
    needed and not known.
    """
    url = server.repository().namespace
    if not url.startswith(LOCAL):
        return Namespace(url, url)
    if local_path is None:
        raise InvalidInput(
            "invalid_setting",
            f"EBBTIDE_LAKEFS_LOCAL_PATH is not set: the server keeps the objects of {server.name} "
            "in a directory, the one that its setting blockstore.local.path names",
            setting="lakefs_local_path",
        )
    return Namespace(url, f"{LOCAL}{local_path.rstrip('/')}/{url.removeprefix(LOCAL)}")


class LakefsRepository(PlainRepository):
    """A repository of a server. Made by `open_lakefs`."""

    layout: LakefsLayout
    landmark = f"{COMMITTED_PREFIX}dummy"
    grace = GRACE
    batch_max = 5_000

    def __init__(
        self,
        server: LakefsServer,
        namespace: Namespace,
        storage: Storage,
        *,
        settings: Settings,
        run_dir: Storage | None = None,
        clock: Clock | None = None,
    ) -> None:
        # A repository that is made again under the same name has another namespace.
        name = f"{FORMAT_NAME}:{server.name}"
        identity = Identity(FORMAT_NAME, server.account.endpoint, namespace.url, name)
        super().__init__(storage, identity, settings=settings, run_dir=run_dir, clock=clock)
        self.layout = LakefsLayout(namespace.prefixes)
        self.walk = LakefsWalk(storage, namespace.prefixes)
        self._server = server
        self._namespace = namespace
        self._history = LakefsHistory({}, ())
        self._cutoff = self.now()

    def check_storage(self) -> None:
        """Raises Refused `run_in_progress` while a run of lakeFS's own job has no summary, and
        `nested_root` as `PlainRepository.check_storage` does."""
        super().check_storage()
        for folder in self.storage.list_prefixes(_UNIFIED_PREFIX):
            if self.storage.head(f"{folder}{_SUMMARY}") is None and self._is_fresh(folder):
                raise Refused(
                    "run_in_progress",
                    f"a run of lakeFS's own job is under way, or broke off within a day: "
                    f"{self.storage.url}/{folder} has no {_SUMMARY}: wait for its end",
                )

    def _is_fresh(self, folder: str) -> bool:
        now = self.now()
        # A date that is more than a day in the future is not recent either: a clock was ahead.
        return any(
            abs(now - date) <= TOKEN_TTL
            for batch in self.storage.list(folder)
            for date in instants(batch.column("last_modified"))
        )

    @contextmanager
    def reading(self, cutoff: datetime) -> Iterator[LakefsReading]:
        """Reads the whole repository anew. Staged objects are read before the commits: an object
        that is committed in between is then in at least one of both."""
        self._cutoff = cutoff
        policy = self.policy()
        folders = [self._address(url) for url in self._server.uncommitted()]
        now = self.now()
        self._history = read_history(self._server, self.storage, self.layout)
        yield self._read(policy, self._history, folders, now)

    def policy(self) -> Policy:
        """Returns the policy in force. Raises as `read_policy` does."""
        return read_policy(self._server, self.storage)

    def written_policy(self) -> Policy | None:
        """Returns the policy beside the repository; None if lakeFS's own rules apply."""
        return written_policy(self.storage)

    def set_policy(self, policy: Policy | None) -> tuple[str, ...]:
        """Writes the policy beside the repository; None removes it, so that lakeFS's own rules
        apply. Returns its patterns that match no branch. Raises Failed."""
        if policy is None:
            remove_policy(self.storage)
            return ()
        write_policy(self.storage, policy)
        return policy.unmatched(self._server.branches())

    def change_policy(self, change: Callable[[Policy], Policy]) -> tuple[Policy, tuple[str, ...]]:
        """Writes what `change` makes of the policy beside the repository, as `rules.change_policy`
        does. Returns it, and its patterns that match no branch."""
        changed = change_policy(self.storage, change)
        return changed, changed.unmatched(self._server.branches())

    def roots(self, policy: Policy | None) -> Roots:
        """Reads refs and commits, for a decision by `policy`. Does not read staged objects. Raises
        as `reading` does."""
        now = self.now()
        history = read_history(self._server, self.storage, self.layout)
        return self._read(policy, history, (), now).roots()

    def _read(
        self, policy: Policy | None, history: LakefsHistory, folders: Iterable[str], now: datetime
    ) -> LakefsReading:
        return LakefsReading(
            self.storage,
            self._namespace,
            history,
            policy,
            tuple(folders),
            now,
            self._closed,
            read_holds(self.storage, now),
        )

    def _address(self, url: str) -> str:
        """Returns the prefix of a folder in the namespace."""
        found = self._namespace.relative(url.rstrip("/") + "/")
        if found is None:
            raise Refused(
                "storage_foreign",
                f"lakeFS wrote to {url}, which is outside of {self._namespace.url}: check its "
                "configuration",
            )
        return found

    def used_unseen(self, candidates: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yields objects that were staged again with the bytes that their path has already."""
        return restaged(
            self._server, self.storage, self.layout, self._namespace, self._history, candidates
        )

    def record_run(
        self, run_id: str, *, state: str, run_path: str | None, plan_checksum: str | None = None
    ) -> None:
        """Records the run in its own folder. After a sweep, also writes a summary to the place
        where lakeFS's tools look for runs of its own job."""
        super().record_run(run_id, state=state, run_path=run_path, plan_checksum=plan_checksum)
        if state == SWEPT:
            self._summarize(run_id)

    def _summarize(self, run_id: str) -> None:
        """Writes the summary of a sweep, in the form of lakeFS's job. In that job's summary,
        `num_deleted_objects` counts marked objects. Here it counts deleted and quarantined
        objects."""
        storage, prefix = self._place_of(run_id)
        report, plan = (
            json.loads(storage.get(f"{prefix}{run_id}/{name}")) for name in (REPORT, PLAN)
        )
        summary = {
            "run_id": run_id,
            "success": True,
            "first_slice": "",
            "start_time": plan["started_at"],
            "cutoff_time": plan["cutoff"],
            "num_deleted_objects": report["deleted_count"] + report["quarantined_count"],
        }
        address = f"{_UNIFIED_PREFIX}{run_id}/{_SUMMARY}"
        self.storage.put(address, json.dumps(summary).encode())

    def resolve(self, expression: str) -> str:
        """Returns the id of the commit for an expression of lakeFS, such as `main~2`. Raises
        NotFound `ref_not_found`."""
        try:
            return self._server.commit(expression).commit_id
        except NotFound as error:
            raise NotFound("ref_not_found", error.message) from error

    def address_at(self, ref: str, path: str) -> str:
        """Returns the address of the object at a path of a ref."""
        url = self._server.address_at(ref, path)
        return self._namespace.relative(url) or url

    def fence(
        self,
        hold: RunHold,
        run_id: str,
        choose: Callable[[Roots], Fencing],
        *,
        cutoff: datetime,
    ) -> None:
        """Decides anew which commits expire, and records them for an undo. Nothing is closed."""
        super().fence(hold, run_id, choose, cutoff=cutoff)
        storage, prefix = self._place_of(run_id)
        rows = [_record(self._history.commits[each]) for each in sorted(self._closed)]
        storage.put(f"{prefix}{run_id}/{CLOSED_FILE}", json.dumps(rows).encode())

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Does nothing: lakeFS keeps the records of all commits. Raises Refused `lease_lost`."""
        del run_id, commit_ids
        hold.check()

    def guard(self, active: Collection[str] | None = None) -> LakefsGuard:
        """Returns the check of refs and new commits before each batch, against the last reading."""
        open_commits = frozenset(self._history.commits) - self._closed
        kept = open_commits if active is None else frozenset(active)
        refs = frozenset(self._history.refs)
        return LakefsGuard(self._server, self.storage, self.layout, kept, refs, self._cutoff)

    def lost(self) -> str | None:
        """Checks refs and new commits once more, for needed objects that do not exist any more."""
        for address, why in self.guard().revived().items():
            if self.storage.head(address) is None:
                return f"{why} has {address}, which is gone"
        return None

    def proofs(self, commits: Mapping[str, datetime], heads: Collection[str]) -> Collection[str]:
        """Returns all commits: lakeFS deletes them only together with their repository."""
        del heads
        return commits.keys()

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Returns no records: lakeFS keeps those of all commits."""
        del commit_ids
        return []

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """Returns the commits whose data the run deleted."""
        storage, prefix = self._place_of(run_id)
        try:
            found: list[dict[str, Any]] = json.loads(storage.get(f"{prefix}{run_id}/{CLOSED_FILE}"))
        except NotFound:
            return []
        return found

    def reopen(
        self,
        hold: RunHold,
        run_id: str,
        commit_ids: Collection[str],
        records: Sequence[Mapping[str, Any]],
        *,
        until: datetime,
    ) -> int:
        """Holds the commits until `until`. lakeFS can read them as soon as their files are
        restored."""
        del run_id, records
        hold.check()
        write_holds(self.storage, commit_ids, until=until, now=self.now())
        return len(commit_ids)


def _record(commit: Commit) -> dict[str, Any]:
    return {
        "commit_id": commit.commit_id,
        "tree_id": commit.tree_id,
        "tree_checksum": commit.tree_id,
    }


def open_lakefs(
    server: LakefsServer,
    *,
    settings: Settings,
    run_dir: str | None = None,
) -> LakefsRepository:
    """Opens a repository of a server. Raises as `find_namespace` and `Namespace.storage_url` do."""
    namespace = find_namespace(server, settings.lakefs_local_path)
    return LakefsRepository(
        server,
        namespace,
        open_storage(namespace.storage_url),
        settings=settings,
        run_dir=None if run_dir is None else open_storage(run_dir),
    )
