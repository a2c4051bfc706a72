"""A repository of a lakeFS server as the collector sees it.

The server has refs and commits; its storage namespace has all files. The files of runs are under
`_ebbtide/` in the namespace. lakeFS cannot close a commit: the fence only chooses the expired
commits. The recheck after it, and the check of the refs before each batch of deletes, find
candidates that are needed again. Not for: the API of lakeFS that `ebbtide serve` answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import instants, texts
from ebbtide.clock import Clock, SystemClock
from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.base import Identity
from ebbtide.formats.file_names import FileNames, NamesAsked, NodeScan, names_by
from ebbtide.formats.holds import reasons_of
from ebbtide.formats.lakefs.committed import read_entries
from ebbtide.formats.lakefs.layout import COMMITTED_PREFIX, EMPTY_TREE, LakefsLayout
from ebbtide.formats.lakefs.needed import LakefsGuard, restaged
from ebbtide.formats.lakefs.refs import LakefsHistory, LakefsReading, read_history
from ebbtide.formats.lakefs.server import LOCAL, AnsweredRules, LakefsServer, Namespace
from ebbtide.formats.lakefs.sstable import DamagedTableError
from ebbtide.formats.lakefs.walk import LakefsWalk
from ebbtide.formats.notes import (
    change_policy,
    read_holds,
    read_policy,
    write_policy,
)
from ebbtide.model import Commit
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots
from ebbtide.storage import Storage, open_storage

FORMAT_NAME: Final = "lakefs"
TOKEN_TTL: Final = timedelta(hours=24)
"""How long an address that a client got for an upload can be linked."""
GRACE: Final = TOKEN_TTL + timedelta(hours=1)
"""The shortest safe grace. It includes an hour for differing clocks and slow commits."""
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


class LakefsRepository:
    """A repository of a server. Made by `open_lakefs`."""

    layout: LakefsLayout
    landmark = f"{COMMITTED_PREFIX}dummy"
    batch_max = 5_000

    def __init__(
        self,
        server: LakefsServer,
        namespace: Namespace,
        storage: Storage,
        *,
        clock: Clock | None = None,
    ) -> None:
        # A repository that is made again under the same name has another namespace.
        name = f"{FORMAT_NAME}:{server.name}"
        self.identity = Identity(FORMAT_NAME, server.account.endpoint, namespace.url, name)
        self.storage = storage
        self.clock = clock or SystemClock()
        self.layout = LakefsLayout(namespace.prefixes)
        self.walk = LakefsWalk(storage, namespace.prefixes)
        self._server = server
        self._namespace = namespace
        self._history = LakefsHistory({}, ())
        self._cutoff = self.now()

    def now(self) -> datetime:
        """Returns this machine's time."""
        return self.clock.host_now()

    def check_storage(self) -> None:
        """Raises Refused `run_in_progress` while a run of lakeFS's own job has no summary."""
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
        """Returns the policy beside the repository, or else lakeFS's own rules.

        Raises Refused `policy_not_found` if there are no rules: without rules, no deletion is safe.
        Raises InvalidInput `invalid_policy`; Failed.
        """
        written = self.written_policy()
        if written is not None:
            return written
        rules, name = self._server.rules(), self._server.name
        if rules is None:
            raise Refused(
                "policy_not_found",
                f"no rules say what may go from {name}: set lakeFS's rules ('lakectl gc "
                f"set-config'), or a policy: ebbtide retention set lakefs:{name} --default 30d",
            )
        return of_days(rules)

    def written_policy(self) -> Policy | None:
        """Returns the policy beside the repository; None if lakeFS's own rules apply."""
        return read_policy(self.storage)

    def set_policy(self, policy: Policy | None) -> tuple[str, ...]:
        """Writes the policy beside the repository; None removes it, so that lakeFS's own rules
        apply. Returns its patterns that match no branch. Raises Failed."""
        write_policy(self.storage, policy)
        return () if policy is None else policy.unmatched(self._server.branches())

    def change_policy(self, change: Callable[[Policy], Policy]) -> tuple[Policy, tuple[str, ...]]:
        """Writes what `change` makes of the policy beside the repository. Returns it, and its
        patterns that match no branch. Raises as `notes.change_policy` does."""
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
            reasons_of(self.storage),
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

    def note_sweep(self, plan: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Writes a summary to the place where lakeFS's tools look for runs of its own job, in the
        form of that job. There, `num_deleted_objects` counts marked objects. Here it counts deleted
        and quarantined objects."""
        run_id = plan["run_id"]
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

    def file_names(self, asked: NamesAsked) -> FileNames:
        """Returns the paths of objects."""
        wanted = pa.array(sorted(asked.addresses), pa.string())

        def ranges_of(commit: Commit) -> list[str] | None:
            if commit.tree_id == EMPTY_TREE:
                return []
            try:
                tree = self.layout.read_tree(asked.storage, commit.tree_id, "")
            except (Refused, NotFound):
                return None
            return texts(tree.column("node_id"))

        def named(range_id: str) -> Iterator[tuple[str, str]] | None:
            (address,) = texts(self.layout.node_addresses(pa.array([range_id])))
            try:
                data = asked.storage.get(address)
                table = read_entries(data, range_id, namespaces=self._namespace.prefixes)
            except (NotFound, DamagedTableError):
                return None
            rows = table.filter(pc.is_in(table.column("address"), wanted))
            return zip(texts(rows.column("address")), texts(rows.column("path")), strict=True)

        scan = NodeScan(asked.commits, nodes_of=ranges_of, read=named)
        return names_by(scan, asked.addresses, {})

    def guard(self, kept: Collection[str], going: Collection[str]) -> LakefsGuard:
        """Returns the check of refs and new commits before each batch, against the last reading."""
        del going
        refs, known = frozenset(self._history.refs), frozenset(kept)
        return LakefsGuard(self._server, self.storage, self.layout, known, refs, self._cutoff)

    def proofs(self, commits: Mapping[str, datetime], heads: Collection[str]) -> Collection[str]:
        """Returns all commits: lakeFS deletes them only together with their repository."""
        del heads
        return commits.keys()


def open_lakefs(server: LakefsServer, local_path: str | None) -> LakefsRepository:
    """Opens a repository of a server. Raises as `find_namespace` and `Namespace.storage_url` do."""
    namespace = find_namespace(server, local_path)
    return LakefsRepository(server, namespace, open_storage(namespace.storage_url))


def of_days(rules: AnsweredRules) -> Policy:
    """Returns lakeFS's rules as a policy.

    They count whole days, and have no rule for tags: lakeFS's own job deletes the data of commits
    that only tags name. Here tags keep their commits. Raises InvalidInput `invalid_policy` for
    negative days, which lakeFS accepts: with negative days, even new commits would expire. Source:
    lakeFS issue 1932.
    """
    named = {"default": rules.default_days, **rules.branches}
    negative = sorted(name for name, days in named.items() if days < 0)
    if negative:
        raise InvalidInput(
            "invalid_policy", f"lakeFS's rule of {negative[0]!r} has negative days: set it again"
        )
    branches = {name: _rule(days) for name, days in rules.branches.items()}
    return Policy.parse({"default": _rule(rules.default_days), "branches": branches})


def _rule(days: int) -> Any:
    # With 0 days, only the head of the branch stays. A head always stays.
    return f"{days}d" if days else {"keep_last": 1}
