"""Making a plan: list, read, decide, mark, subtract. Changes nothing but the run's own files.

The order is rule 2 of the safety rules: the inventory first, then, in one snapshot of the metadata,
what is protected and what is committed. What is written after the listing cannot be a candidate.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from ebbtide.formats.base import RepositoryFormat
from ebbtide.gc.gates import check_clocks, check_not_empty, check_share
from ebbtide.gc.inventory import list_inventory
from ebbtide.gc.mark import MarkedTrees, mark
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Part, PartRows
from ebbtide.gc.plan import Plan, write_commits
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Steps
from ebbtide.gc.subtract import Count, subtract
from ebbtide.retention.decision import Decision, Roots, decide


def make_plan(
    spark: SparkSession,
    repository: RepositoryFormat,
    *,
    run_id: str,
    folder: RunFolder,
    options: RunOptions,
    steps: Steps,
) -> Plan:
    """Make the plan of a run; the caller writes it. Refused by any gate."""
    with steps("check"):
        started_at = check_times(repository, options)
        cutoff = started_at - options.grace
    with steps("list"):
        answers = list_inventory(spark, repository.storage, repository.layout, folder)
        inventory = [part for part in answers if part.name is not None]
        kinds = total_by_group(part for part in answers if part.name is None)
        listed = sum((kinds.get(k, Count()) for k in repository.layout.delete_order), Count())
    with steps("read"):
        roots, protected = _read_metadata(repository, folder)
        check_not_empty(roots, listed_count=listed.objects)
        decision = decide(roots)
        commits = write_commits(folder, roots, decision)
    with steps("mark"):
        marked = mark(
            spark,
            storage=repository.storage,
            layout=repository.layout,
            folder=folder,
            name="live",
            trees=trees_of(roots, decision),
            checksums=roots.tree_checksums,
        )
    with steps("subtract"):
        result = subtract(
            spark,
            folder=folder,
            inventory=inventory,
            live=list(marked.parts),
            protected=protected,
            kinds=repository.layout.delete_order,
            cutoff=cutoff,
        )
    gone_count = sum(commit.tombstoned for commit in roots.commits)
    over = check_share(
        candidates=(result.counts["candidate"].objects, result.counts["candidate"].bytes_total),
        listed=(listed.objects, listed.bytes_total),
        share_max=options.share_max,
    )
    return Plan(
        run_id=run_id,
        identity=repository.identity,
        started_at=started_at,
        cutoff=cutoff,
        grace_seconds=options.grace.total_seconds(),
        policy=None if roots.policy is None else roots.policy.to_mapping(),
        counts={"listed": listed, **result.counts},
        kinds=kinds,
        candidates=result.candidates,
        commits=commits,
        active_count=len(decision.active),
        expired_count=len(decision.expired) - gone_count,
        gone_count=gone_count,
        forgettable_count=len(decision.forgettable),
        by_ref=tuple(summary_json(decision)),
        warnings=decision.warnings,
        seconds=steps.seconds(),
        refusal=(over.kind, over.message) if over else None,
    )


def check_times(repository: RepositoryFormat, options: RunOptions) -> datetime:
    """The gate on clocks; the earliest clock's now, from which ages are counted."""
    clocks = repository.clocks()
    check_clocks(clocks, skew_max=options.skew_max)
    return min(clocks.host, clocks.database, clocks.storage)


def trees_of(roots: Roots, decision: Decision) -> MarkedTrees:
    """The trees that a decision keeps, and those whose data it keeps.

    A commit that an operator gave up has no checksum of its tree: the tree is not read.
    """

    def trees(commit_ids: Container[str]) -> frozenset[str]:
        return frozenset(
            commit.tree_id
            for commit in roots.commits
            if commit.commit_id in commit_ids and commit.tree_id in roots.tree_checksums
        )

    return MarkedTrees(recorded=trees(decision.recorded), data=trees(decision.active))


def _read_metadata(repository: RepositoryFormat, folder: RunFolder) -> tuple[Roots, list[Part]]:
    with repository.reading() as reading:
        protected = write_protected(folder, reading.protected(), name="uncommitted")
        return reading.roots(), protected


def write_protected(folder: RunFolder, tables: Iterable[pa.Table], *, name: str) -> list[Part]:
    """Write the relation `protected` as parts under `name`."""
    answer = PartRows()
    for number, table in enumerate(tables):
        answer.wrote(folder, f"{name}/part-{number:05d}.parquet", table, group="protected")
    return [Part(**{key: row[key] for key in Part.__dataclass_fields__}) for row in answer.rows]


def total_by_group(parts: Iterable[Part]) -> dict[str, Count]:
    """Rows and bytes of `parts` by their group."""
    totals: dict[str, Count] = {}
    for part in parts:
        totals[part.group] = totals.get(part.group, Count()) + Count(part.rows, part.bytes_total)
    return totals


def summary_json(decision: Decision) -> Iterable[Mapping[str, Any]]:
    """What each ref's rule kept and let go, JSON-ready."""
    return (asdict(summary) for summary in decision.by_ref)
