"""The refs and commits of a lakeFS repository at one instant.

The server dumps its commits, branches and tags, in this order, as metaranges whose entries are
protobuf messages. A branch can have moved since its commits were dumped: such commits are asked
for one by one. Their dates come in whole seconds then, and with fractions in a dump. A commit must
have one date, whichever way it is read. So dates are in whole seconds here.
Source: lakeFS, `pkg/graveler/graveler.proto`. Not for: what stays (`reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.arrow import texts
from ebbtide.errors import Failed, NotFound, Refused
from ebbtide.formats.base import PROTECTED_SCHEMA, node_address
from ebbtide.formats.holds import with_restored
from ebbtide.formats.lakefs.committed import read_messages
from ebbtide.formats.lakefs.layout import LakefsLayout, refusing
from ebbtide.formats.lakefs.server import AnsweredCommit, LakefsServer, Namespace
from ebbtide.model import EPOCH, Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots
from ebbtide.storage import Storage
from ebbtide.text import shown

_FIRST_PARENT_FIRST: Final = 1
"""From this version of commits on, the first parent is the former head of the branch. In older
commits, it is the last parent."""
_STRING, _INT32, _INT64, _MESSAGE = 9, 5, 3, 11
"""Types of fields in a descriptor of protobuf."""
_OPTIONAL, _REPEATED = 1, 3


@dataclass(frozen=True, slots=True)
class LakefsHistory:
    """All commits and refs. The tree of a commit is its metarange; a commit without one has an
    empty tree, "" for its id."""

    commits: Mapping[str, Commit]
    refs: tuple[Ref, ...]


def read_history(server: LakefsServer, storage: Storage, layout: LakefsLayout) -> LakefsHistory:
    """Reads the present refs, and all commits.

    Raises Refused `missing_parent` if the server does not know a commit that a ref or another
    commit names, and as `Layout.read_tree` does for the files of the dump. Raises Failed
    `lakefs_error`, also for a commit without a valid date.
    """
    dumped = server.dump()
    messages = _messages(storage, layout, dumped.commits)
    commits = {commit.commit_id: commit for commit in map(_commit, messages)}
    refs = read_refs(server)
    if refs and not commits:
        # The refs' own commits would be asked for, and those of deleted branches would be missed.
        raise Failed(
            "lakefs_error",
            f"the server dumped no commits of {server.name}, which has refs: run again",
        )
    complete(server, commits, (ref.commit_id for ref in refs))
    return LakefsHistory(commits, refs)


def read_refs(server: LakefsServer) -> tuple[Ref, ...]:
    """Returns the present branches and tags. Tags are read last: a tag can be made from a branch
    just before the branch is deleted."""
    branches = [Ref(name, "branch", head) for name, head in server.branches().items()]
    return (*branches, *(Ref(name, "tag", head) for name, head in server.tags().items()))


def complete(server: LakefsServer, commits: dict[str, Commit], heads: Iterable[str]) -> None:
    """Adds the missing commits that `heads` reach to `commits`. Raises as `commit_of` does."""
    waiting = [head for head in heads if head not in commits]
    while waiting:
        commit_id = waiting.pop()
        if commit_id not in commits:
            commits[commit_id] = commit_of(server, commit_id)
            waiting += commits[commit_id].parent_ids


def commit_of(server: LakefsServer, commit_id: str) -> Commit:
    """Returns a commit by its id. Raises Refused `missing_parent`."""
    found = find_commit(server, commit_id)
    if found is None:
        raise Refused(
            "missing_parent",
            f"the server names commit {shown(commit_id)}, and does not find it: a part of the "
            "history is lost, or the server has to be asked again; run again",
        )
    return _made(found.commit_id, found.parents, found.created, found.metarange_id, found.version)


def find_commit(server: LakefsServer, commit_id: str) -> AnsweredCommit | None:
    """Returns the server's answer for the whole id of a commit, or None.

    A server can answer that it does not know a whole id, and find the commit by a prefix of the id:
    it looks up whole ids in another way. A branch can have the name that is asked for. So an answer
    counts only if it is for this id.
    """
    for asked in (commit_id, commit_id[:-1]):
        try:
            found = server.commit(asked)
        except NotFound:
            continue
        if found.commit_id == commit_id:
            return found
    return None


def _made(
    commit_id: str, parents: Iterable[str], seconds: int, metarange_id: str, version: int
) -> Commit:
    named = tuple(parents)
    if version < _FIRST_PARENT_FIRST:
        named = named[::-1]
    try:
        created_at = EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise Failed(
            "lakefs_error",
            f"the server dates commit {shown(commit_id)} {seconds} s after 1970, which is not in "
            "the years 1 to 9999: correct its date in the server's database",
        ) from None
    return Commit(commit_id, named, created_at, metarange_id)


def _messages(storage: Storage, layout: LakefsLayout, metarange_id: str) -> Iterator[bytes]:
    """Yields the messages of a dump."""
    ranges = layout.read_tree(storage, metarange_id, metarange_id)
    for range_id in texts(ranges.column("node_id")):
        address = node_address(layout, range_id)
        with refusing(storage, address, what="tree"):
            messages = read_messages(storage.get(address), range_id)
        yield from messages


def _commit(message: bytes) -> Commit:
    read = _commit_data()()
    read.ParseFromString(message)
    seconds = read.creation_date.seconds
    return _made(read.id, read.parents, seconds, read.meta_range_id, read.version)


@cache
def _commit_data() -> Any:  # the class of a message, which protobuf makes
    """Returns the class of the message `CommitData`, with the fields that are needed here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "ebbtide.lakefs"
    file = descriptor_pb2.FileDescriptorProto(
        name="ebbtide/lakefs.proto", package=package, syntax="proto3"
    )
    instant = file.message_type.add(name="Instant")
    instant.field.add(name="seconds", number=1, type=_INT64, label=_OPTIONAL)
    commit = file.message_type.add(name="CommitData")
    add = commit.field.add
    add(name="id", number=1, type=_STRING, label=_OPTIONAL)
    add(
        name="creation_date",
        number=4,
        type=_MESSAGE,
        label=_OPTIONAL,
        type_name=f".{package}.Instant",
    )
    add(name="meta_range_id", number=5, type=_STRING, label=_OPTIONAL)
    add(name="parents", number=7, type=_STRING, label=_REPEATED)
    add(name="version", number=8, type=_INT32, label=_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.CommitData"))


UNCOMMITTED: Final = "staged on a branch"
_COLUMNS: Final = ("physical_address", "creation_date")


@dataclass(frozen=True, slots=True)
class LakefsReading:
    """The relations of one instant.

    `folders` are the addresses of the folders with uncommitted addresses, which the server wrote
    before the commits were read. `holds` are those of users, with their reasons. `held` maps
    commits whose files an undo restored to the end of their hold.
    """

    storage: Storage
    namespace: Namespace
    history: LakefsHistory
    policy: Policy | None
    folders: tuple[str, ...]
    now: datetime
    holds: Mapping[str, str]
    held: Mapping[str, datetime]

    def roots(self) -> Roots:
        """Returns refs, all commits, and the policy. The checksum of a tree is its id."""
        commits = tuple(self.history.commits.values())
        holds, ends = with_restored(self.holds, self.held, self.history.commits)
        return Roots(
            now=self.now,
            refs=self.history.refs,
            commits=commits,
            stub_ids=frozenset(),
            tree_checksums={commit.tree_id: commit.tree_id for commit in commits},
            policy=self.policy and self.policy.with_holds(holds),
            holds=holds,
            holds_end=ends,
        )

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """Yields the uncommitted objects. `among` is ignored, because the server's files have no
        order. Raises Failed `lakefs_error` if a file cannot be read."""
        del among
        for folder in self.folders:
            for batch in self.storage.list(folder):
                for address in texts(batch.column("address")):
                    yield self._uncommitted(address)

    def _uncommitted(self, address: str) -> pa.Table:
        try:
            data = pa.BufferReader(self.storage.get(address))
            table = pq.read_table(data, columns=[*_COLUMNS], page_checksum_verification=True)
            table.validate(full=True)  # a damaged file can have addresses that are not UTF-8
            named = table.column(_COLUMNS[0]).cast(pa.string())
            dates = table.column(_COLUMNS[1]).cast(pa.int64()).cast(pa.timestamp("s", "UTC"))
        except (pa.ArrowException, OSError, KeyError) as error:
            raise Failed(
                "lakefs_error",
                f"the server's list of uncommitted objects {self.storage.url}/{address} cannot be "
                f"read: {error}: run again",
            ) from error
        columns: list[Any] = [
            named,
            pa.repeat(pa.scalar(UNCOMMITTED), len(named)),
            pa.nulls(len(named), PROTECTED_SCHEMA.field("until").type),
            dates.cast(PROTECTED_SCHEMA.field("created_at").type),
        ]
        return pa.Table.from_arrays(columns, schema=PROTECTED_SCHEMA)
