"""The walk: finds all addresses that kept data and kept records of commits need.

Addresses are compared as text. The format's `Walk` reads trees and nodes, a few files at a time.
The walk holds only the addresses of trees and nodes in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from ebbtide.audit.commits import PlannedRoots
from ebbtide.errors import NotFound
from ebbtide.formats.base import Walk
from ebbtide.gc.steps import Meter, advance
from ebbtide.model import Commit
from ebbtide.retention.decision import Decision, Roots

READERS: Final = 16
FILES_AT_ONCE: Final = 256
"""The number of files in one batch of reads."""


@dataclass(frozen=True, slots=True)
class Need:
    """The reason why an address is needed, in words. `planned`: by a commit that the plan knew.
    `required`: by a commit that stays now, so that the file must exist."""

    text: str
    planned: bool
    required: bool


Look = Callable[[str, Need], None]
"""Called with each needed address."""
Unread = Callable[[str, str, str], None]
"""Called with sort, address and text for a required file that cannot be read."""


@dataclass(slots=True)
class Needs:
    """The trees to walk by id, and the addresses that are needed beside them.

    `record` has the trees that stay, and `data` those whose data stays. `companions` are addresses
    that belong to the records of commits.
    """

    record: dict[str, Need] = field(default_factory=dict)
    data: dict[str, Need] = field(default_factory=dict)
    companions: dict[str, Need] = field(default_factory=dict)

    @classmethod
    def of(cls, planned: PlannedRoots, roots: Roots, now: Decision) -> Needs:
        """Collects the needs of commits: those that the plan keeps, if they still exist, and those
        that stay now."""
        found = cls()
        known = {c.commit_id: c for c in roots.commits if c.tree_id in roots.tree_checksums}
        follows = planned.decision
        for each in planned.commits:
            commit = known.get(each.commit.commit_id)
            if commit is None:
                continue
            reason = each.reason if each.active else None
            if reason is None and follows is not None:
                reason = follows.active.get(commit.commit_id)
            recorded = each.recorded
            if follows is not None:
                recorded = recorded or commit.commit_id in follows.recorded
            found._add(
                commit,
                reason,
                planned=True,
                recorded=recorded,
                required=commit.commit_id in now.recorded,
                data_required=commit.commit_id in now.active,
                companions=each.companions,
                roots=roots,
            )
        for commit in known.values():
            found._add(
                commit,
                now.active.get(commit.commit_id),
                planned=False,
                recorded=commit.commit_id in now.recorded,
                required=True,
                data_required=True,
                companions=roots.companions.get(commit.commit_id, ()),
                roots=roots,
            )
        return found

    def _add(
        self,
        commit: Commit,
        reason: str | None,
        *,
        planned: bool,
        recorded: bool,
        required: bool,
        data_required: bool,
        companions: Iterable[str],
        roots: Roots,
    ) -> None:
        strict = commit.tree_id not in roots.lenient_trees
        if reason is not None:
            text = f"commit {commit.commit_id}: {reason}"
            _merge(self.data, commit.tree_id, Need(text, planned, data_required and strict))
        if recorded or reason is not None:
            text = f"the record of commit {commit.commit_id}"
            need = Need(text, planned, required and strict)
            _merge(self.record, commit.tree_id, need)
            for address in companions:
                _merge(self.companions, address, need)


def _merge(needs: dict[str, Need], key: str, need: Need) -> None:
    """Adds a need. The first need of a key stays. It becomes required if any need of the key is."""
    first = needs.setdefault(key, need)
    if need.required and not first.required:
        needs[key] = replace(first, required=True)


def reach(
    walk: Walk,
    needs: Needs,
    wanted: Container[str],
    look: Look,
    unread: Unread,
    meter: Meter,
) -> Counter[str]:
    """Calls `look` for each needed address; for an address in a node, only if it is `wanted`.

    Calls `unread` for each required tree or node that cannot be read. Returns the number of trees
    and nodes that were read.
    """
    read: Counter[str] = Counter()
    nodes: dict[str, Need] = {}
    seen: dict[str, Need] = {}
    for address, need in needs.companions.items():
        look(address, need)
    trees = {walk.tree(tree_id): tree_id for tree_id in needs.record}
    with ThreadPoolExecutor(READERS) as pool:
        meter.begin("trees", len(trees))
        for tree, found in _read(pool, walk.nodes, trees):
            need = needs.record[trees[tree]]
            look(tree, need)
            if isinstance(found, _Unread):
                if need.required:
                    unread(found.sort, tree, f"{need.text}: {found.text}")
                continue
            read["trees"] += 1
            data = needs.data.get(trees[tree])
            for node in found:
                if node not in seen:
                    look(node, need)
                _merge(seen, node, need)
                if data is not None:
                    _merge(nodes, node, data)

        def content(node: str) -> list[str]:
            return [address for address in walk.content(node) if address in wanted]

        meter.begin("nodes", len(nodes))
        for node, found in _read(pool, content, nodes):
            if isinstance(found, _Unread):
                if nodes[node].required:
                    unread(found.sort, node, f"{nodes[node].text}: {found.text}")
                continue
            read["nodes"] += 1
            for address in found:
                look(address, nodes[node])
    return read


@dataclass(frozen=True, slots=True)
class _Unread:
    sort: str
    text: str


def _read(
    pool: ThreadPoolExecutor, function: Callable[[str], list[str]], addresses: Iterable[str]
) -> Iterator[tuple[str, list[str] | _Unread]]:
    """Yields the result of `function` for each address, in order, or the reason why the file cannot
    be read."""

    def one(address: str) -> list[str] | _Unread:
        try:
            return function(address)
        except NotFound:
            return _Unread("missing", "the file is not there")
        except ValueError as error:
            return _Unread("damaged", str(error))

    waiting = iter(addresses)
    while batch := list(islice(waiting, FILES_AT_ONCE)):
        for each in zip(batch, pool.map(one, batch), strict=True):
            advance(1)
            yield each
