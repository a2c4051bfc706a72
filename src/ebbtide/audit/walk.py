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

from ebbtide.audit.planned import Planned
from ebbtide.errors import NotFound
from ebbtide.formats.base import Walk
from ebbtide.gc.steps import Meter, advance
from ebbtide.retention.decision import Decision, Roots

READERS: Final = 16
FILES_AT_ONCE: Final = 256
"""The number of files in one batch of reads."""

Unreadable = NotFound | ValueError
"""Why a `Walk` cannot read a file: it is missing, or damaged."""


@dataclass(frozen=True, slots=True)
class Need:
    """The reason why an address is needed, in words. `planned`: by a commit that the plan knew.
    `required`: by a commit that stays now, so that the file must exist."""

    text: str
    planned: bool
    required: bool


@dataclass(frozen=True, slots=True)
class Needs:
    """The trees that stay by id (`record`), those of them whose data stays (`data`), and other
    addresses that belong to the records of commits (`companions`)."""

    record: dict[str, Need] = field(default_factory=dict)
    data: dict[str, Need] = field(default_factory=dict)
    companions: dict[str, Need] = field(default_factory=dict)


def needs_of(planned: Planned, roots: Roots, now: Decision) -> Needs:
    """Returns the needs of commits: those that the plan keeps, if they still exist, and those that
    stay `now`."""
    needs = Needs()
    known = {c.commit_id: c for c in roots.commits if c.tree_id in roots.tree_checksums}
    for source, kept in ((planned.roots, planned.kept), (roots, now)):
        for commit_id in (each.commit_id for each in source.commits if each.commit_id in known):
            tree_id, by_plan = known[commit_id].tree_id, source is planned.roots
            is_strict = tree_id not in roots.lenient_trees
            if commit_id in kept.active:
                text = f"commit {commit_id}: {kept.active[commit_id]}"
                need = Need(text, by_plan, is_strict and commit_id in now.active)
                _merge(needs.data, tree_id, need)
            if commit_id in kept.active or commit_id in kept.recorded:
                text = f"the record of commit {commit_id}"
                need = Need(text, by_plan, is_strict and commit_id in now.recorded)
                _merge(needs.record, tree_id, need)
                for address in source.companions.get(commit_id, ()):
                    _merge(needs.companions, address, need)
    return needs


def _merge(needs: dict[str, Need], key: str, need: Need) -> None:
    """Adds a need. The first need of a key stays. It becomes required if any need of the key is."""
    first = needs.setdefault(key, need)
    if need.required and not first.required:
        needs[key] = replace(first, required=True)


def reach(
    walk: Walk, needs: Needs, wanted: Container[str], meter: Meter, read: Counter[str]
) -> Iterator[tuple[str, Need, Unreadable | None]]:
    """Yields each needed address; an address in a node only if it is `wanted`.

    Yields a required tree or node that cannot be read with the error. Adds the number of trees and
    nodes that were read to `read`.
    """
    nodes: dict[str, Need] = {}
    seen: set[str] = set()
    yield from ((address, need, None) for address, need in needs.companions.items())
    trees = {walk.tree(tree_id): tree_id for tree_id in needs.record}
    with ThreadPoolExecutor(READERS) as pool:
        meter.begin("trees", len(trees))
        for tree, found in _read(pool, walk.nodes, trees):
            need = needs.record[trees[tree]]
            yield tree, need, None
            if not isinstance(found, list):
                if need.required:
                    yield tree, need, found
                continue
            read["trees"] += 1
            data = needs.data.get(trees[tree])
            for node in found:
                if node not in seen:
                    yield node, need, None
                seen.add(node)
                if data is not None:
                    _merge(nodes, node, data)

        def content(node: str) -> list[str]:
            return [address for address in walk.content(node) if address in wanted]

        meter.begin("nodes", len(nodes))
        for node, found in _read(pool, content, nodes):
            if isinstance(found, list):
                read["nodes"] += 1
                yield from ((address, nodes[node], None) for address in found)
            elif nodes[node].required:
                yield node, nodes[node], found


def _read(
    pool: ThreadPoolExecutor, function: Callable[[str], list[str]], addresses: Iterable[str]
) -> Iterator[tuple[str, list[str] | Unreadable]]:
    """Yields the result of `function` for each address, in order, or the error."""

    def one(address: str) -> list[str] | Unreadable:
        try:
            return function(address)
        except (NotFound, ValueError) as error:
            return error

    waiting = iter(addresses)
    while batch := list(islice(waiting, FILES_AT_ONCE)):
        for each in zip(batch, pool.map(one, batch), strict=True):
            advance(1)
            yield each
