"""Prints a run's figures for people: the files that it found, its candidates and its outcomes.

The summary at the end of a run is at most six plain lines, for a ticket. It has each figure once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ebbtide.cli.command import Cli, command_line
from ebbtide.cli.output import Output
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.gc import EXPIRES_NEXT, FOUND, OUTCOMES, commits_text
from ebbtide.ids import instant_of
from ebbtide.processes import DUCKDB, NO_SPARK
from ebbtide.text import (
    count_text,
    date_text,
    escaped,
    known_size_text,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from ebbtide.gc.costs import StorageClasses
    from ebbtide.gc.parts import Count
    from ebbtide.gc.plan import Plan
    from ebbtide.gc.report import RunReport
    from ebbtide.prices import Prices


USUAL: Final = frozenset({"STANDARD", "Hot"})
"""The storage classes of which there is nothing to say."""
DIGITS_SHOWN: Final = 12
"""The digits that are shown of a policy's checksum. `ebbtide gc show --json` has all."""

Pairs = list[tuple[str, str]]


def refs_table(output: Output, by_ref: Iterable[Mapping[str, Any]]) -> None:
    """Prints for each branch its rule, and its commits by state; then what is kept beyond the
    rules, and why. Runs of older versions counted closed commits as expired."""
    found = list(by_ref)
    counts = {"commits": "commit_count", "kept": "kept_count", EXPIRES_NEXT: "expired_count"}
    if any(summary.get("gone_count") for summary in found):
        counts["quarantined or gone"] = "gone_count"
    output.table(
        ["branch", "rule", *counts],
        [
            [each["name"], each["rule"], *(count_text(each.get(it, 0)) for it in counts.values())]
            for each in found
            if each["kind"] != "beyond"
        ],
        right=list(counts),
        none="no branches",
    )
    for summary in found:
        if summary["kind"] == "beyond":
            commits = count_text(summary["kept_count"], "commit is", "commits are")
            output.line(f"{commits} kept beyond the rules: {summary['rule']}")


def show_plan(output: Output, plan: Plan, prices: Prices | None = None) -> None:
    """Prints the files that a plan found, and its candidates; with prices, what they cost."""
    from ebbtide.gc.plan import REMOVAL

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
    if plan.storage_classes is not None:
        _show_classes(output, plan.storage_classes)
    if prices is not None:
        output.line()
        output.line(_money_text(plan, prices))
    foreign = plan.kinds.get("foreign")
    if foreign is not None and foreign.objects:
        output.line()
        output.line(f"kept: {count_text(foreign.objects, 'file')} that Ebbtide did not write")
    for warning in plan.all_warnings:
        output.warn(warning)


def prices_of(cli: Cli) -> Prices | None:
    """Returns the prices of the settings; None if there are none. Raises as `Prices.of`."""
    from ebbtide.prices import Prices

    return Prices.of(cli.settings)


def plan_money(plan: Plan, prices: Prices | None) -> dict[str, Any] | None:
    """Returns what the candidates cost a month, and what the requests of their sweep cost; None
    without prices. The field `money` of the commands that make or show a plan."""
    from ebbtide.gc.costs import bytes_by_class

    if prices is None:
        return None
    total = plan.candidate_total
    return {
        "currency": prices.currency,
        "saves_month": prices.month(bytes_by_class(plan.storage_classes, total)),
        "sweep_cost": prices.sweep(total.objects, quarantine=False),
        "quarantine_cost": prices.sweep(total.objects, quarantine=True),
    }


def _money_text(plan: Plan, prices: Prices) -> str:
    money = plan_money(plan, prices)
    assert money is not None
    saves, sweep, quarantine = (
        prices.text(money[name]) for name in ("saves_month", "sweep_cost", "quarantine_cost")
    )
    return (
        f"a sweep saves {saves} a month; on an object storage its requests cost {sweep}, and "
        f"{quarantine} with a quarantine"
    )


def _show_classes(output: Output, classes: StorageClasses) -> None:
    """Prints the storage classes of candidates, if any of them is not the usual one."""
    if {each.name for each in classes.found} <= USUAL:
        return
    output.line()
    known, total = count_text(classes.looked_at), count_text(classes.of, "candidate")
    output.line(f"storage classes of {known} of {total}, as the listing gives them:")
    rows = [
        [each.name, *_texts(each.count), *_texts(each.early), count_text(each.archived.objects)]
        for each in classes.found
    ]
    heads = ["class", "count", "size", "younger than its minimum", "of size", "archived"]
    output.table(heads, rows, right=heads[1:])


def _show_commits(output: Output, plan: Plan) -> None:
    from ebbtide.gc.report import without_contents

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
    counts = plan.active_count, plan.expired_count, plan.gone_count
    output.line(commits_text(*without_contents(plan.by_ref, *counts)))
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
    from ebbtide.gc.parts import Count

    kinds: dict[str, Count] = {}
    for part in plan.candidates:
        kinds[part.kind] = kinds.get(part.kind, Count()) + part.count
    return kinds


def _texts(count: Count) -> tuple[str, str]:
    return count_text(count.objects), known_size_text(count.known_bytes)


def show_summary(cli: Cli, report: RunReport) -> None:
    """Prints a run in at most six lines, after the last steps that failed: the run, the repository,
    what was kept, what became of the candidates, the run's files, and the command that can
    follow."""
    for each in report.unfinished:
        cli.output.warn(each["message"])
    policy = report.policy_sha256
    where = place_of(cli, report.repository)
    if policy is not None:
        where += f", policy sha256 {policy[:DIGITS_SHOWN]}"
    pairs: Pairs = [("run", _run_text(report)), ("repository", where)]
    if report.has_plan:
        pairs += _figures(report)
    if report.error is not None:
        pairs.append(("error", f"{report.error['kind']}: {report.error['message']}"))
    if report.run_path:
        pairs.append(("files", report.run_path))
    show_block(cli, pairs + _way_on(cli, report))


def show_block(cli: Cli, pairs: Pairs) -> None:
    """Prints names and values."""
    cli.output.fields([(name, escaped(value)) for name, value in pairs])


def made_by() -> str:
    """Returns the program and its version."""
    from importlib.metadata import version

    return f"ebbtide {version('ebbtide')}"


def place_of(cli: Cli, repository: str) -> str:
    """Returns the repository and its store."""
    if is_elsewhere(repository):
        return repository
    directory = cli.store.directory
    where = "the database of EBBTIDE_DATABASE_URL" if directory is None else str(directory)
    return f"{repository}, in {where}"


def _run_text(report: RunReport) -> str:
    """Returns the id of a run, its state, its time, and what carried it out."""
    started_at = instant_of(report.run_id)
    seconds = sum(report.seconds.values())
    took = f"{seconds:.1f} s" if seconds < 60 else time_text(seconds)
    begun = "" if started_at is None else f", begun {date_text(started_at)} UTC"
    engine = "" if report.engine in (None, DUCKDB, NO_SPARK) else f" on {report.engine}"
    return f"{report.run_id} {report.state}{begun}, {took} at work, by {made_by()}{engine}"


def _figures(report: RunReport) -> Pairs:
    """Returns the line with the files that a run keeps, and the line with its candidates."""
    counts = report.counts
    total = counts["live"] + counts["protected"] + counts["young"]
    unread = "" if total.sized else " (sizes not read: --sizes all)"
    pairs = [("kept", _files_text(total) + unread)]
    if "deleted" not in counts:
        return [*pairs, ("would be deleted", _files_text(counts["candidate"]))]
    (name, found), *others = _outcomes(report)
    expired = report.commits.get("expired", 0)
    if expired and report.state != "undone":
        others.append(("closed", count_text(expired, "commit")))
    return [*pairs, (name, "; ".join([found, *(f"{word} {text}" for word, text in others)]))]


def _outcomes(report: RunReport) -> Pairs:
    """Returns the outcomes of the candidates, first that of most of them."""
    counts, quarantine = report.counts, report.quarantine
    found = {
        words: _files_text(counts[name]) for name, words in OUTCOMES.items() if counts[name].objects
    }
    if quarantine is not None:
        words = OUTCOMES["quarantined"]
        found = {words: _quarantine_text(quarantine)} | {
            each: text for each, text in found.items() if each != words
        }
    locked = counts.get("locked")
    if locked is not None and locked.objects:
        found["kept by a lock"] = f"versions of {_files_text(locked)}, which failed"
    return list(found.items()) or [(OUTCOMES["deleted"], _files_text(counts["deleted"]))]


def _files_text(count: Count) -> str:
    size = f", {size_text(count.bytes_total)}" if count.sized else ""
    return count_text(count.objects, "file") + size


def _quarantine_text(quarantine: Mapping[str, Any]) -> str:
    """Returns the text about a run's quarantine: its files, and until when."""
    found = f"{count_text(quarantine['objects'], 'file')}, {size_text(quarantine['bytes'])}"
    if quarantine["state"] == "held":
        until = datetime.fromisoformat(quarantine["until"])
        return f"{found}, until {date_text(until)} UTC"
    done = {"undone": "restored", "purged": "deleted for good"}[quarantine["state"]]
    return f"{done}, {date_text(datetime.fromisoformat(quarantine['at']))} UTC"


def _way_on(cli: Cli, report: RunReport) -> Pairs:
    """Returns the command that can be used on the run next, as it is typed."""
    if not report.run_path or not report.has_plan:
        return []
    quarantine = report.quarantine
    name, word = "verify", "verify"
    names: tuple[str, ...] = (report.repository, report.run_id)
    if quarantine is not None and quarantine["state"] == "held" and quarantine["objects"]:
        name, word = "undo", "undo"
    if report.state in ("planned", "incomplete"):
        name, word = "carry out" if report.state == "planned" else "continue", "sweep"
    if report.error is not None and report.error["kind"] == "over_share":
        name, word, names = "allow", "sweep", (*names, "--allow-share")
    return [(name, command_line(cli.context, ("gc", word), names))]
