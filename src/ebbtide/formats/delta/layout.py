"""The layout of tables' files, and how executors read what kept versions need.

A tree is a version, and its id is the address of its commit. A node is a range of the log. Of the
kept versions k1 < k2 < … the first has its whole state as a node. Each following one has the adds
of the commits since the one before it, as far as they survive: a file of k2 is in k1 or was added
since. The newest version of a table also has its whole state, because all of its files must exist.
So a run reads each commit once, however many versions it keeps.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, first_match, table_of
from ebbtide.errors import Refused
from ebbtide.formats import base
from ebbtide.formats.base import FOREIGN, NODES_SCHEMA, SYSTEM, SYSTEM_PREFIX, ListingItem
from ebbtide.formats.delta import actions
from ebbtide.formats.delta.log import (
    LOG,
    SIDECARS,
    TableLog,
    checkpoint_of,
    commit_name,
    list_log,
)
from ebbtide.formats.delta.places import DamagedLogError, DeltaPlaces
from ebbtide.formats.locations import folders_of, outermost
from ebbtide.storage import Storage

_OWN: Final = (SYSTEM, rf"(?:(?s:.)*/)?{SYSTEM_PREFIX}(?s:.)*")
DATA, VECTOR, CHANGES, CHECKSUM = "data", "dv", "cdc", "checksum"
CHANGE_DATA: Final = "_change_data"
_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NODE: Final = re.compile(rf"((?s:.)*){LOG}([0-9]+)([-*~])([0-9]+)(?:\+(.+))?")
NodeRow = tuple[str, str, int]
"""A row of NODES_SCHEMA."""
_STATE, _EACH, _GONE = "-", "*", "~"
"""In the id of a node: the adds that survive to the end of the range, those of each commit, or what
the range releases if only its last version stays."""
_TOGETHER_MAX: Final = 200
"""The most commits in one node with the adds of each commit."""
_BYTES_PER_ENTRY: Final = 100
_TOPS_MAX: Final = 1_000
"""The most folders at the top of a table that are listed one by one."""


@dataclass(frozen=True, slots=True)
class TableFolder:
    """The folder of a table."""

    prefix: str
    partition_columns: frozenset[str] = frozenset()
    has_iceberg: bool = False

    def patterns(self) -> list[tuple[str, str]]:
        """Returns the kinds of addresses in the folder as patterns, for `first_match`."""
        own = re.escape(self.prefix)
        columns = sorted(each for each in self.partition_columns if each[:1] in "._")
        shown = [
            "[^/._]",
            "_delta_index",
            CHANGE_DATA,
            *(re.escape(f"{each}=") for each in columns),
        ]
        name = rf"(?:{'|'.join(shown)})[^/]*"
        files, vector = rf"(?:{name}/)*", rf"deletion_vector_{_UUID}\.bin"
        return [
            _OWN,
            (SYSTEM, f"{own}{LOG}(?s:.)*"),
            *([(FOREIGN, rf"{own}(?:(?s:.)*/)?metadata(?:/(?s:.)*)?")] if self.has_iceberg else []),
            (CHANGES, f"{own}{CHANGE_DATA}/{files}{name}"),
            (VECTOR, f"{own}{files}{vector}"),
            (DATA, rf"{own}{files}{name}\.parquet"),
            (CHECKSUM, rf"{own}{files}\.(?:{vector}|[^/]*\.parquet)\.crc"),
        ]


@dataclass(frozen=True, slots=True)
class DeltaLayout:
    """The files in the folders of tables. `kept` are the versions of each table, by its prefix,
    that are read together (`for_trees`), and `rows` the unbroken rows of its commits."""

    places: DeltaPlaces
    folders: tuple[TableFolder, ...]
    kept: Mapping[str, Sequence[int]] | None = None
    rows: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    delete_order: tuple[str, ...] = (DATA, VECTOR, CHANGES, CHECKSUM)

    def plan_listing(self, storage: Storage, slices: base.Slices, *, cores: int) -> base.Listing:
        """Returns units for the folders of the tables, without logs and Ebbtide's own files."""
        items: list[ListingItem] = []
        shares = min(cores, base.SHARES_MAX) if storage.url.startswith("file:") else 1
        for prefix in outermost(each.prefix for each in self.folders):
            tops = storage.list_prefixes(prefix)
            if len(tops) > _TOPS_MAX and shares == 1:
                items.append(ListingItem(prefix, recursive=True, sized=slices.sized, streamed=True))
                continue
            items += [
                ListingItem(prefix, recursive=False, share=(k, shares), sized=slices.sized)
                for k in range(shares)
            ]
            items += [
                ListingItem(each, recursive=True, sized=slices.sized, streamed=True)
                for each in tops
                if each not in (f"{prefix}{LOG}", SYSTEM_PREFIX)
            ]
        return base.Listing(items)

    def left_out(self, addresses: pa.StringArray, slices: base.Slices) -> pa.BooleanArray:
        """Returns whether no listing has each address: it lies outside of the folders, or is hidden
        as the log is."""
        del slices
        kinds = self.classify(addresses)
        return pc.is_in(kinds, value_set=pa.array([FOREIGN, SYSTEM], pa.string()))

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address, from the address alone. Hidden files, and names that
        Delta does not make, are foreign."""
        if [each.prefix for each in self.folders] == [""]:
            kinds = first_match(addresses, self.folders[0].patterns(), otherwise=FOREIGN)
        else:
            kinds = first_match(addresses, [_OWN], otherwise=FOREIGN)
            own = folders_of(addresses, [each.prefix for each in self.folders])
            for number in np.unique(own[own >= 0]):
                mask: Any = pa.array(own == number)
                some: Any = addresses.filter(mask)
                found = first_match(some, self.folders[number].patterns(), otherwise=FOREIGN)
                kinds = pc.replace_with_mask(kinds, mask, found)
        answer: pa.StringArray = pc.if_else(base.outside(addresses), pa.scalar(FOREIGN), kinds)
        return answer

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of commits, which are the ids of the versions."""
        return tree_ids

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the address of the last commit in each range."""
        return pc.replace_substring_regex(
            node_ids, rf"{LOG}[0-9]+[-*~]([0-9]+)(?:\+.*)?\z", rf"{LOG}\1.json"
        )

    def for_trees(self, tree_ids: Iterable[str]) -> DeltaLayout:
        """Returns a layout that reads these versions together: the nodes of all of them name what
        they all need. Other versions have no nodes."""
        kept = defaultdict[str, list[int]](list)
        for prefix, version in map(tree_of, tree_ids):
            kept[prefix].append(version)
        return replace(self, kept={prefix: sorted(each) for prefix, each in kept.items()})

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """Returns the nodes of a version (NODES_SCHEMA). The number of entries is an estimate by
        the sizes of files."""
        del checksum
        prefix, version = tree_of(tree_id)
        if self.kept is None:
            return table_of([self.state(storage, prefix, version)], NODES_SCHEMA)
        kept = self.kept.get(prefix, ())
        place = bisect_left(kept, version)
        if place >= len(kept) or kept[place] != version:
            return NODES_SCHEMA.empty_table()
        if place == 0 or version == self._newest(prefix):
            return table_of([self.state(storage, prefix, version)], NODES_SCHEMA)
        return table_of(self._since(storage, prefix, kept, place), NODES_SCHEMA)

    def _newest(self, prefix: str) -> int | None:
        rows = self.rows.get(prefix)
        return rows[-1][1] if rows else None

    def _since(
        self, storage: Storage, prefix: str, kept: Sequence[int], place: int
    ) -> list[NodeRow]:
        """Returns the nodes with what a kept version adds to the one before it."""
        before, version, rows = kept[place - 1], kept[place], self.rows.get(prefix, ())
        if before + 1 < version:
            if any(first <= before + 1 and version <= last for first, last in rows):
                return [(_node_id(prefix, before + 1, _STATE, version), "", 0)]
            return [self.state(storage, prefix, version)]
        # A row of kept versions is one node, or a few: at its last version, and at round numbers.
        after = kept[place + 1] if place + 1 < len(kept) else None
        if after == version + 1 != self._newest(prefix) and version % _TOGETHER_MAX:
            return []
        first, least = version, (version - 1) // _TOGETHER_MAX * _TOGETHER_MAX + 1
        while first > least and place > 1 and kept[place - 2] == first - 2:
            first, place = first - 1, place - 1
        return [(_node_id(prefix, first, _EACH, version), "", 0)]

    def state(self, storage: Storage, prefix: str, version: int) -> NodeRow:
        """Returns the node of a version's whole state. Raises Refused `corrupt_tree` if the log
        cannot rebuild it."""
        log = list_log(storage, prefix)
        found = log.base(version)
        if found is None:
            # Of another kind than a missing tree: nothing may ignore it.
            where = f"version {version} of {storage.url}/{prefix}"
            raise Refused("corrupt_tree", f"{where} cannot be rebuilt by the log any more")
        first = min(found.version + 1, version)
        names = [*found.names, *map(commit_name, range(first, version + 1))]
        size = sum(log.sizes[each] for each in names)
        node = _node_id(prefix, first, _STATE, version) + "".join(f"+{x}" for x in found.names[:1])
        return node, "", size // _BYTES_PER_ENTRY

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the files that a range of the log adds or releases, of data, deletion vectors and
        changes.

        Raises Refused `missing_tree` or `corrupt_tree` for a file of the log, and
        `unknown_format_version`.
        """
        del checksum, entry_count
        prefix, first, kind, last, _ = _range_of(node_id)
        found = read_range(storage, node_id)
        if kind == _STATE:
            is_own = pc.and_(
                pc.equal(found["kind"], pa.scalar(actions.CDC)),
                pc.equal(found["version"], pa.scalar(last)),
            )
            found = pa.concat_tables([actions.surviving(found), found.filter(is_own)])
        elif kind == _GONE:
            # What the first commit removed, the version before it had; the last version stays.
            removed, changes = (
                found.filter(pc.equal(found["kind"], pa.scalar(each)))
                for each in (actions.REMOVE, actions.CDC)
            )
            removed = removed.filter(pc.greater(removed["version"], pa.scalar(first)))
            changes = changes.filter(pc.less(changes["version"], pa.scalar(last)))
            found = pa.concat_tables([removed, changes])
        else:
            found = found.filter(pc.not_equal(found["kind"], pa.scalar(actions.REMOVE)))
        with _refusing(storage, prefix, commit_name(last)):
            return self._addresses(prefix, found.combine_chunks())

    def _addresses(self, prefix: str, files: pa.Table) -> pa.StringArray:
        found = self.places.addresses(prefix, column_of(files, "path"))
        pairs = files.group_by(["storage", "vector"]).aggregate([]).to_pylist()
        vectors = [
            self.places.vector_address(prefix, **row) for row in pairs if row["storage"] is not None
        ]
        named = pa.array([each for each in vectors if each is not None], pa.string())
        answer: pa.StringArray = pc.unique(pa.concat_arrays([found, named]))
        return answer


def read_range(storage: Storage, node: str) -> pa.Table:
    """Returns all actions in a range of the log (ACTIONS_SCHEMA). Raises as `read_node`."""
    prefix, first, _, last, name = _range_of(node)
    files = []
    for version in range(first, last + 1):
        with _refusing(storage, prefix, commit_name(version)):
            files.append((version, storage.get(f"{prefix}{LOG}{commit_name(version)}")))
    try:
        found = actions.read_commits(files)
    except DamagedLogError:
        for version, data in files:  # find out which
            with _refusing(storage, prefix, commit_name(version)):
                actions.read_commits([(version, data)])
        raise
    return found if name is None else pa.concat_tables([_checkpoint(storage, prefix, name), found])


def _checkpoint(storage: Storage, prefix: str, first: str) -> pa.Table:
    """Returns the actions of a checkpoint with its sidecars (ACTIONS_SCHEMA)."""
    checkpoint, cars = checkpoint_of(first), dict[str, None]()

    def read(name: str) -> pa.Table:
        with _refusing(storage, prefix, name):
            lines = actions.read_checkpoint(storage.get(f"{prefix}{LOG}{name}"), name)
            if name in checkpoint.names:  # a sidecar names no sidecars
                cars.update((f"{SIDECARS}{each}", None) for each in actions.sidecars_of(lines))
            return actions.actions_of(lines, np.full(lines.num_rows, checkpoint.version, np.int64))

    tables = [read(each) for each in checkpoint.names]
    return pa.concat_tables([*tables, *map(read, cars)])


def column_of(table: pa.Table, name: str) -> Any:
    """Returns a column as one array."""
    return (
        pa.concat_arrays(table.column(name).chunks) if table.num_rows else pa.array([], pa.string())
    )


def tree_id(prefix: str, version: int) -> str:
    """Returns the id of a version's tree."""
    return f"{prefix}{LOG}{commit_name(version)}"


def tree_of(tree: str) -> tuple[str, int]:
    """Returns the prefix of the table, and the version, of a tree."""
    prefix, _, name = tree.rpartition(LOG)
    return prefix, int(name[:-5])


def released_nodes(log: TableLog, first: int, last: int) -> Iterator[NodeRow]:
    """Yields nodes that name what the versions from `first` on need and the version `last` does
    not, and their changed data: what commits after `first` remove."""
    for start in range(first, last, _TOGETHER_MAX):
        yield _node_row(log, start, _GONE, min(start + _TOGETHER_MAX, last))


def added_node(log: TableLog, first: int, last: int) -> NodeRow:
    """Returns the node of the files that these commits add and that survive them."""
    return _node_row(log, first, _STATE, last)


def _node_row(log: TableLog, first: int, kind: str, last: int) -> NodeRow:
    size = sum(log.sizes[commit_name(each)] for each in range(first, last + 1))
    return _node_id(log.table, first, kind, last), "", size // _BYTES_PER_ENTRY


def adds_of(prefix: str, first: int, last: int) -> str:
    """Returns the id of the node with the adds of each of these commits."""
    return _node_id(prefix, first, _EACH, last)


def _node_id(prefix: str, first: int, kind: str, last: int) -> str:
    return f"{prefix}{LOG}{first:020d}{kind}{last:020d}"


def _range_of(node: str) -> tuple[str, int, str, int, str | None]:
    match = _NODE.fullmatch(node)
    assert match is not None
    return match[1], int(match[2]), match[3], int(match[4]), match[5]


def _refusing(storage: Storage, prefix: str, name: str) -> AbstractContextManager[None]:
    address = f"{prefix}{LOG}{name}"
    return base.refusing(storage, address, what="tree", damaged=DamagedLogError)
