"""Names of files for people: the path in a commit, an array and a key, the message of a snapshot.

Plans and layouts know files by their addresses. A repository finds names in the commits that had
the files. Reading them is limited. Not for: what keeps a file, or deciding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, runtime_checkable
from urllib.parse import unquote

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.errors import EbbtideError
from ebbtide.formats.locations import folders_of

if TYPE_CHECKING:
    from ebbtide.model import Commit
    from ebbtide.storage import Storage

TREES_MAX: Final = 1_000
"""The most trees that are read for one question."""
NODES_MAX: Final = 1_000
"""The most nodes that are read for the names of some files."""
READERS: Final = 16
_PARTITION: Final = re.compile(r"[^/=]+=[^/]*")

Node = TypeVar("Node", bound=Hashable)
Rows = TypeVar("Rows")
Pairs = TypeVar("Pairs", bound=Iterable[tuple[str, str]])


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of a file. `commit_id` is the commit in which the file has it, if there is one."""

    name: str
    commit_id: str | None = None


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of some files, by address. If they are not `complete`, a file without a name may
    have one in a commit that was not read."""

    by_address: Mapping[str, FileName]
    complete: bool = True


AddressesOf = Callable[[str], Sequence[str]]
"""Returns the addresses of those files of one kind that the caller's question is about, or some of
them if they are many."""


@dataclass(frozen=True, slots=True)
class NamesAsked:
    """A question for the names of files, by the commits that may have them. The `storage` is to
    read trees and nodes from."""

    addresses: frozenset[str]
    commits: Sequence[Commit]
    among: AddressesOf
    storage: Storage


@runtime_checkable
class Naming(Protocol):
    """A repository whose files have names."""

    storage: Storage

    def file_names(self, asked: NamesAsked) -> FileNames:
        """Returns the names of files, each by the first of the commits that has it. Files that
        cannot be read give no names. Raises EbbtideError as a reading does."""


def file_names(
    repository: object,
    addresses: Collection[str],
    commits: Sequence[Commit],
    among: AddressesOf = lambda _kind: (),
    *,
    storage: Storage | None = None,
) -> FileNames:
    """Returns the names of files as `Naming.file_names` does; none if the format has no names. By
    default the `storage` is the repository's own.

    A server or a catalog that does not answer costs the names, and not the list of the files.
    """
    if not addresses or not isinstance(repository, Naming):
        return FileNames({})
    try:
        read_from = storage or repository.storage
        return repository.file_names(NamesAsked(frozenset(addresses), commits, among, read_from))
    except EbbtideError:
        return FileNames({}, complete=False)


class NodeScan(Generic[Node, Rows]):
    """Reads the nodes of commits, in order, each node once.

    `nodes_of` and `read` return None for a tree or a node that cannot be read any more. After the
    iteration has ended, `complete` says whether every node of every commit was read. At most
    `nodes_max` nodes are read, or NODES_MAX.
    """

    def __init__(
        self,
        commits: Sequence[Commit],
        *,
        nodes_of: Callable[[Commit], Sequence[Node] | None],
        read: Callable[[Node], Rows | None],
        nodes_max: int | None = None,
    ) -> None:
        self._commits = commits
        self._nodes_of = nodes_of
        self._read = read
        self._nodes_max = NODES_MAX if nodes_max is None else nodes_max
        self.complete = len(commits) <= TREES_MAX

    def __iter__(self) -> Iterator[tuple[Commit, Rows]]:
        """Yields the rows of each node, with the first commit that has the node."""
        seen: set[Node] = set()
        with ThreadPoolExecutor(READERS) as readers:
            for commit, nodes in self._trees(readers):
                if nodes is None:
                    self.complete = False
                    continue
                fresh = [node for node in nodes if node not in seen]
                if len(seen) + len(fresh) > self._nodes_max:
                    self.complete = False
                    return
                seen.update(fresh)
                for rows in readers.map(self._read, fresh):
                    if rows is None:
                        self.complete = False
                    else:
                        yield commit, rows

    def _trees(self, readers: ThreadPoolExecutor) -> Iterator[tuple[Commit, Sequence[Node] | None]]:
        for start in range(0, min(len(self._commits), TREES_MAX), READERS):
            some = self._commits[start : min(start + READERS, TREES_MAX)]
            yield from zip(some, readers.map(self._nodes_of, some), strict=True)


def names_by(
    scan: NodeScan[Node, Pairs],
    wanted: Collection[str],
    known: Mapping[str, FileName],
) -> FileNames:
    """Returns the names of the `wanted` addresses: those that are `known`, and those of a scan
    whose rows are pairs of an address and a name."""
    found = {address: name for address, name in known.items() if address in wanted}
    left = set(wanted) - found.keys()
    if left:
        for commit, pairs in scan:
            for address, name in pairs:
                if address in left:
                    found.setdefault(address, FileName(name, commit.commit_id))
            if left <= found.keys():
                break
    return FileNames(found, complete=left <= found.keys() or scan.complete)


def names_in_tables(addresses: Collection[str], tables: Mapping[str, str]) -> FileNames:
    """Returns the table of each file, and the partition that its folders name. `tables` maps
    folders to names of tables; a file outside all of them gets no name."""
    asked = pa.array(sorted(set(addresses)), pa.string())
    names = list(tables.values())
    places = zip(texts(asked), folders_of(asked, list(tables)).tolist(), strict=True)
    return FileNames(
        {each: FileName(_in_partition(names[place], each)) for each, place in places if place >= 0}
    )


def _in_partition(table: str, address: str) -> str:
    folders = [unquote(each) for each in address.split("/")[:-1] if _PARTITION.fullmatch(each)]
    return f"{table}, {'/'.join(folders)}" if folders else table
