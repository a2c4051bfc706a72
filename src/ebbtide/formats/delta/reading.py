"""What the collector reads of tables: the relations at one time, and what commits have come to need
since.

A writer may add a file again that versions have removed: RESTORE, a clone, a conversion. No log can
be asked to refuse such commits. So before each batch of deletes the logs are listed, and new
commits are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from typing import Final

import pyarrow as pa

from ebbtide.arrow import table_of, texts
from ebbtide.durations import format_duration
from ebbtide.errors import Refused
from ebbtide.formats.base import NODES_SCHEMA, LateNeeds, changed
from ebbtide.formats.capabilities import Changes
from ebbtide.formats.delta.layout import (
    DeltaLayout,
    NodeRow,
    added_node,
    adds_of,
    released_nodes,
    tree_id,
    tree_of,
)
from ebbtide.formats.delta.log import LOG, Stamp, TableLog, list_log
from ebbtide.formats.delta.places import DeltaPlaces
from ebbtide.formats.delta.tables import TableReader, TableState
from ebbtide.formats.holds import with_restored
from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots
from ebbtide.retention.policy import Rule
from ebbtide.storage import Storage

ONLY: Final = "table"
"""The name of the branch of a repository of one table."""
ROOT: Final = "."
"""The name of a table at the root, beside others."""


def commit_id_of(table: str, version: int) -> str:
    """Returns the id of a version as a commit. `table` is the name of its branch."""
    return str(version) if table == ONLY else f"{version}:{table}"


@dataclass(frozen=True, slots=True)
class DeltaReading:
    """The relations of tables, by the names of their branches. `policy` is that beside the tables;
    without one, each table's own property decides. `holds` are those of users, with their reasons.
    `held` maps versions whose files an undo restored to the end of their hold."""

    tables: Mapping[str, TableState]
    policy: Policy | None
    holds: Mapping[str, str]
    held: Mapping[str, datetime]
    now: datetime
    notes: tuple[str, ...] = ()

    def roots(self) -> Roots:
        """Returns a branch for each table, with its versions. A version whose commit the log has
        lost is no commit; the next older one is the parent then."""
        commits, lenient, checksums = [], set[str](), dict[str, str]()
        for name, table in self.tables.items():
            parents: tuple[str, ...] = ()
            for version in table.versions:
                commit_id, tree = (
                    commit_id_of(name, version.number),
                    tree_id(table.prefix, version.number),
                )
                commits.append(Commit(commit_id, parents, version.at, tree))
                checksums[tree] = ""
                parents = (commit_id,)
                # An earlier VACUUM may have deleted files of all versions but the newest.
                if version.number != table.newest:
                    lenient.add(tree)
        known = {each.commit_id for each in commits}
        holds, ends = with_restored(self.holds, self.held, known)
        policy = self.policy if self.policy is not None else own_policy(self.tables)
        return Roots(
            now=self.now,
            refs=tuple(
                Ref(name, "branch", commit_id_of(name, table.newest))
                for name, table in self.tables.items()
            ),
            commits=tuple(commits),
            stub_ids=frozenset(),
            tree_checksums=checksums,
            policy=policy.with_holds(holds),
            lenient_trees=frozenset(lenient),
            holds=holds,
            holds_end=ends,
            warnings=(*self.notes, *self._short_logs(policy)),
        )

    def _short_logs(self, policy: Policy) -> Iterator[str]:
        """Yields a warning for each table whose log is shorter than what the policy keeps."""
        rules = policy.lookup()
        for name, table in self.tables.items():
            rule, lasts = rules.rule(name), table.metadata.log_retention
            keeps = None if rule is None else rule.keep_within
            if lasts is not None and keeps is not None and keeps > lasts:
                yield (
                    f"{name}: the policy keeps versions for {format_duration(keeps)}, but the "
                    f"table cleans its log up after {format_duration(lasts)} "
                    "(delta.logRetentionDuration), and then they cannot be read"
                )

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """Yields nothing: only versions need files, and the grace protects those of commits to
        come."""
        del among
        yield from ()


def changes_since(
    tables: Iterable[TableState],
    earlier: Collection[str],
    released: Collection[str],
    kept: Collection[str],
) -> Changes:
    """Returns what has changed since a plan, as `Releasing.changes` does.

    A file of a version r that no kept version needs is not in k, the first kept version after r. So
    one of the commits after r, up to k, removes it. Raises Refused `repository_changed`, and
    `missing_tree` if the log has lost one of these commits.
    """
    before, gone, stay = (_by_table(each) for each in (earlier, released, kept))
    known = {each.prefix: each for each in tables}
    if before.keys() != known.keys():
        raise changed("the name has other tables than before")
    nodes, new = list[NodeRow](), list[NodeRow]()
    for prefix, table in known.items():
        last, newest = before[prefix][-1], table.newest
        if max([last, *gone[prefix]]) > newest:
            raise changed(f"the log of {prefix or 'the table'} is an older one")
        for end, versions in groupby(gone[prefix], partial(_next, stay[prefix])):
            nodes += released_nodes(table.log, _unbroken(table.log, next(versions), end), end)
        if last < newest:
            new.append(added_node(table.log, _unbroken(table.log, last + 1, newest), newest))
    return Changes(table_of(nodes, NODES_SCHEMA), table_of(new, NODES_SCHEMA))


def _by_table(trees: Iterable[str]) -> defaultdict[str, list[int]]:
    """Returns the versions of each table's prefix, in order."""
    found = defaultdict[str, list[int]](list)
    for prefix, version in sorted(map(tree_of, trees)):
        found[prefix].append(version)
    return found


def _next(kept: Sequence[int], version: int) -> int:
    return kept[bisect_left(kept, version)]


def _unbroken(log: TableLog, first: int, last: int) -> int:
    """Returns `first`. Raises Refused `missing_tree` if one of the commits is not in the log."""
    if not any(start <= first and last <= end for start, end in log.rows()):
        where = f"{log.storage.url}/{log.table}{LOG}"
        raise Refused("missing_tree", f"{where} has lost one of the commits {first} to {last}")
    return first


def own_policy(tables: Mapping[str, TableState]) -> Policy:
    """Returns the rules that the tables themselves set: how long they keep removed files. Raises
    InvalidInput `invalid_policy`."""
    return Policy(branches={name: _rule(each.metadata.retention) for name, each in tables.items()})


def _rule(period: timedelta) -> Rule:
    # With a period of zero, only the newest version stays.
    return Rule(keep_within=period) if period else Rule(keep_last=1)


@dataclass(frozen=True, slots=True)
class SeenTable:
    """A table as a reading saw it: the commits from its oldest kept version on."""

    name: str
    prefix: str
    commits: Mapping[int, Stamp]


@dataclass(slots=True)
class DeltaGuard(LateNeeds):
    """The guard of one sweep."""

    storage: Storage
    tables: tuple[SeenTable, ...]
    _added: dict[str, str] = field(default_factory=dict)

    def needed(self) -> Mapping[str, str]:
        """Returns the addresses that commits have added since the reading, each with the reason.
        Raises Refused `repository_changed` if a known commit is missing or changed."""
        self.tables = tuple(self._look(each) for each in self.tables)
        return self._added

    def _look(self, table: SeenTable) -> SeenTable:
        log = list_log(self.storage, table.prefix)
        for version, stamp in table.commits.items():
            if log.commits.get(version) != stamp:
                raise changed(f"version {version} of {table.name} is missing or changed")
        last = max(table.commits)
        fresh = {version: stamp for version, stamp in log.commits.items() if version > last}
        layout = DeltaLayout(DeltaPlaces(self.storage.url), ())
        reader = TableReader(self.storage, table.prefix)
        for version in sorted(fresh):
            reader.check(version, reader.facts(version))
            node = adds_of(table.prefix, version, version)
            for address in texts(layout.read_node(self.storage, node, "", entry_count=0)):
                self._added.setdefault(address, f"version {version} of {table.name}")
        return replace(table, commits={**table.commits, **fresh})
