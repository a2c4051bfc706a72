"""Files that kept commits need, and that are not on the storage.

A listing can lack such a file because the file was written later, so that each one is looked up
before it counts. The run goes on: none of these files can be a candidate. Not for: formats whose
nodes have no checksums (`gates.check_presence`), and restoring the files (`sweeping.recovery`).
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import purged_among
from ebbtide.gc.engines.base import Batches, Engine, answers_of
from ebbtide.gc.parts import ANSWERS_SCHEMA, Part, PartRows, read_part
from ebbtide.gc.planning.deciding import Decided
from ebbtide.gc.planning.gates import SHOWN_MAX
from ebbtide.gc.planning.plan import REFS_SCHEMA, read_commits
from ebbtide.gc.relations.inventory import ROWS_PER_PART
from ebbtide.gc.relations.keys import KeyArray, keys_of, rows_of
from ebbtide.gc.relations.live import HELD_SCHEMA, Mark
from ebbtide.gc.relations.trees import TREES_SCHEMA
from ebbtide.gc.runs import RunFolder
from ebbtide.storage import Storage
from ebbtide.text import count_text

ABSENT: Final = "absent"
"""The relation of parts of absent files (HELD_SCHEMA), in the folder of the same name."""
TREES_MAX: Final = 1_000
"""The most trees that are read to find the commits that need some absent files."""
_SHARED: Final = make_schema(("share", pa.int32()), *((n, pa.string()) for n in HELD_SCHEMA.names))


def find_absent(
    engine: Engine, repository: RepositoryFormat, mark: Mark, missing: KeyArray
) -> list[Part]:
    """Returns the absent files among the required addresses of a mark with these keys, each once
    (parts of HELD_SCHEMA). `missing` are the keys that were not listed. Purged files, and addresses
    that the listing leaves out, such as imported objects, are not among them."""
    if not len(missing):
        return []
    storage, folder, shares = repository.storage, mark.place.folder, engine.task_count
    layout, slices = repository.layout, mark.slices

    def shared(batches: Batches) -> Batches:
        for batch in batches:
            # The index knows keys alone, so that it can't tell which ones a listing leaves out.
            if slices is not None:
                left_out = layout.left_out(cast("pa.StringArray", batch.column("address")), slices)
                batch = batch.filter(pc.invert(left_out))
            numbers = pa.array((keys_of(batch.column("address")) % shares).astype(np.int32))
            yield pa.record_batch([numbers, *batch.columns], schema=_SHARED)

    def look(batches: Batches) -> Batches:
        answer = PartRows()
        found = pa.Table.from_batches(batches, _SHARED).group_by("address", use_threads=False)
        once = found.aggregate([("node_id", "min"), ("share", "min")])
        for start in range(0, once.num_rows, ROWS_PER_PART):
            some = once.slice(start, ROWS_PER_PART)
            rows = some.select(["address", "node_id_min"]).rename_columns(HELD_SCHEMA.names)
            gone = rows.filter(pc.invert(exists(storage, texts(rows.column("address")))))
            name = f"{ABSENT}/part-{some.column('share_min')[0].as_py():05d}-{start:09d}.parquet"
            answer.wrote(folder, name, gone, relation=ABSENT)
        yield answer.batch()

    held = mark.addresses(missing).map(shared, _SHARED)
    answers = answers_of(held.map(look, ANSWERS_SCHEMA, by=("share",), tasks=shares))
    return without_purged(repository, folder, answers.parts)


def exists(storage: Storage, addresses: list[str]) -> pa.Array[Any]:
    """Returns whether there is a file at each address."""
    regular: Any = storage.sizes(addresses).column("regular").fill_null(False)
    found: pa.Array[Any] = regular
    return found


def without_purged(
    repository: RepositoryFormat, folder: RunFolder, parts: list[Part]
) -> list[Part]:
    """Returns parts with a column `address`, without purged addresses."""
    kept, answer = list[Part](), PartRows()
    for part in parts:
        table = read_part(folder, part.name, part.checksum)
        purged = purged_among(repository, texts(table.column("address")))
        if not purged:
            kept.append(part)
            continue
        gone = pc.is_in(table.column("address"), value_set=pa.array(sorted(purged)))
        name = part.name.removesuffix(".parquet") + "-unpurged.parquet"
        answer.wrote(folder, name, table.filter(pc.invert(gone)), relation=part.relation)
    return kept + answer.parts()


def warning_of(
    repository: RepositoryFormat, folder: RunFolder, decided: Decided, absent: list[Part]
) -> str:
    """Returns the warning about absent files. It names up to SHOWN_MAX of them, each with a commit
    that needs it, and the refs that point at the commit."""
    rows: dict[str, str | None] = {}
    for part in absent:
        table = read_part(folder, part.name, part.checksum).slice(0, SHOWN_MAX - len(rows))
        columns = texts(table.column("address")), table.column("node_id").to_pylist()
        rows |= dict(zip(*columns, strict=True))
    holders = _holders(repository, folder, decided, {each for each in rows.values() if each})
    named = ", ".join(f"{name}{holders.get(node or '', '')}" for name, node in rows.items())
    count = rows_of(absent)
    more = f" and {count - len(rows):,} more" if count > len(rows) else ""
    one, several = "file that a kept commit needs is", "files that kept commits need are"
    return (
        f"{count_text(count, one, several)} not at {repository.storage.url}: {named}{more}. "
        "A sweep restores those that are in a quarantine; restore the others from a backup"
    )


def _holders(
    repository: RepositoryFormat, folder: RunFolder, decided: Decided, nodes: set[str]
) -> dict[str, str]:
    """Returns a commit and its refs for each node, as a text. Looks at commits with refs first, and
    at up to TREES_MAX trees."""
    commits = read_commits(folder, decided.commits).table
    commits = commits.filter(commits.column("active")).select(["commit_id", "tree_id"])
    refs = read_part(folder, decided.refs.name, decided.refs.checksum, columns=REFS_SCHEMA.names)
    names: dict[str, str] = {}
    for ref in refs.to_pylist():
        names.setdefault(ref["commit_id"], f", {ref['kind']} {ref['name']}")
    checksums: dict[str, str] = {}
    for part in decided.trees.trees:
        table = read_part(folder, part.name, part.checksum).select(TREES_SCHEMA.names[:2])
        checksums |= dict(zip(*(texts(column) for column in table.columns), strict=True))
    found: dict[str, str] = {}
    rows = sorted(commits.to_pylist(), key=lambda row: row["commit_id"] not in names)
    for row in rows[:TREES_MAX]:
        if nodes <= found.keys():
            break
        commit_id, tree_id = row["commit_id"], row["tree_id"]
        tree = repository.layout.read_tree(repository.storage, tree_id, checksums[tree_id])
        for node_id in nodes.intersection(texts(tree.column("node_id"))) - found.keys():
            found[node_id] = f" (commit {commit_id}{names.get(commit_id, '')})"
    return found
