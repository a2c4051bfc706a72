"""Prints a run's figures for people: the files that it found, its candidates and its outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ebbtide.cli.output import Output
from ebbtide.text import count_text, date_text, known_size_text

if TYPE_CHECKING:
    from ebbtide.gc.counts import Count
    from ebbtide.gc.planning.classes import CandidateClasses
    from ebbtide.gc.planning.plan import Plan
    from ebbtide.gc.report import RunReport

FOUND: Final = {
    "listed": "all files",
    "live": "needed by commits",
    "protected": "kept without a commit",
    "young": "younger than the grace",
    "candidate": "would be deleted",
}
OUTCOMES: Final = {
    "deleted": "deleted",
    "quarantined": "quarantined",
    "missing": "already gone",
    "revived": "needed again, kept",
    "failed": "failed",
}
USUAL: Final = frozenset({"STANDARD", "Hot"})
"""The storage classes of which there is nothing to say."""


def refs_table(output: Output, by_ref: Iterable[Mapping[str, Any]]) -> None:
    """Prints for each branch its rule, and how many commits the rule keeps and expires."""
    output.table(
        ["branch", "rule", "commits", "kept", "expired"],
        [
            [
                str(summary["name"]),
                str(summary["rule"]),
                count_text(summary["commit_count"]),
                count_text(summary["kept_count"]),
                count_text(summary["expired_count"]),
            ]
            for summary in by_ref
        ],
        right=["commits", "kept", "expired"],
        none="no branches",
    )


def show_plan(output: Output, plan: Plan) -> None:
    """Prints the files that a plan found, and its candidates."""
    from ebbtide.gc.planning.plan import REMOVAL

    if plan.mode == REMOVAL:
        name = plan.identity.repository_name
        output.line(f"{name} is gone: all files that Ebbtide wrote would be deleted")
    else:
        _show_commits(output, plan)
    output.line()
    rows = [[FOUND[name], *_texts(plan.counts[name])] for name in FOUND]
    rows += [[f"  {kind}", *_texts(count)] for kind, count in candidate_kinds(plan).items()]
    output.table(["files", "count", "size"], rows, right=["count", "size"])
    if plan.young_slices:
        output.line()
        slices = count_text(plan.young_slices, "slice")
        output.line(f"not listed: {slices} with nothing older than the grace")
    if plan.classes is not None:
        _show_classes(output, plan.classes)
    foreign = plan.kinds.get("foreign")
    if foreign is not None and foreign.objects:
        output.line()
        output.line(f"kept: {count_text(foreign.objects, 'file')} that Ebbtide did not write")
    for warning in plan.all_warnings:
        output.warn(warning)


def _show_classes(output: Output, classes: CandidateClasses) -> None:
    """Prints the storage classes of candidates, if any of them is not the usual one."""
    if {each.name for each in classes.found} <= USUAL:
        return
    output.line()
    looked_at, total = count_text(classes.looked_at), count_text(classes.of, "candidate")
    output.line(f"storage classes of {looked_at} of {total}, chosen at random:")
    rows = [
        [each.name, *_texts(each.count), *_texts(each.early), count_text(each.archived.objects)]
        for each in classes.found
    ]
    heads = ["class", "count", "size", "younger than its minimum", "of size", "archived"]
    output.table(heads, rows, right=heads[1:])


def _show_commits(output: Output, plan: Plan) -> None:
    refs_table(output, plan.by_ref)
    output.line()
    if plan.previous_id is not None:
        output.line(f"incremental: continues from run {plan.previous_id}")
    elif plan.mode_reason is not None:
        output.line(f"clean: {plan.mode_reason}")
    if plan.inventory_url is not None:
        output.line(
            f"listed by {plan.inventory_url}: files newer than {date_text(plan.cutoff)} are kept"
        )
    gone = f" (and {count_text(plan.gone_count)} in earlier runs)" if plan.gone_count else ""
    output.line(
        f"{count_text(plan.active_count, 'commit')} kept, "
        f"{count_text(plan.expired_count)} expired{gone}"
    )
    if plan.forgettable_count:
        one = "commit is in the history of no ref or kept commit: its record expires too"
        several = "commits are in the history of no ref or kept commit: their records expire too"
        output.line(count_text(plan.forgettable_count, one, several))


def show_outcome(output: Output, report: RunReport) -> None:
    """Prints the outcomes of a plan's candidates."""
    rows = [[text, *_texts(report.counts[name])] for name, text in OUTCOMES.items()]
    output.table(["outcome", "count", "size"], rows, right=["count", "size"])
    locked = report.counts.get("locked")
    if locked is not None and locked.objects:
        output.line()
        one, several = "failed file is hidden", "failed files are hidden"
        files = count_text(locked.objects, one, several)
        output.line(f"{files}: an object lock keeps the versions")
    forgotten = report.commits.get("forgotten", 0)
    if forgotten:
        output.line()
        records = "the record of" if forgotten == 1 else "the records of"
        is_held = report.quarantine is not None and report.quarantine["state"] == "held"
        went = "quarantined" if is_held else "deleted"
        one, several = f"commit is {went} too", f"commits are {went} too"
        output.line(f"{records} {count_text(forgotten, one, several)}")


def candidate_kinds(plan: Plan) -> dict[str, Count]:
    """Returns the candidates of a plan, counted by kind of file."""
    from ebbtide.gc.counts import Count

    kinds: dict[str, Count] = {}
    for part in plan.candidates:
        kinds[part.kind] = kinds.get(part.kind, Count()) + part.count
    return kinds


def _texts(count: Count) -> tuple[str, str]:
    return count_text(count.objects), known_size_text(count.known_bytes)
