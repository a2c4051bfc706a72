"""Prints the summary at the end of a run: a few plain lines, complete enough for a ticket."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ebbtide.cli.command import Cli
from ebbtide.cli.interrupting import command_line
from ebbtide.escaping import escaped
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.ids import instant_of
from ebbtide.processes import DUCKDB, NO_SPARK
from ebbtide.text import count_text, date_text, size_text, time_text

if TYPE_CHECKING:
    from ebbtide.gc.counts import Count
    from ebbtide.gc.report import RunReport

KEPT: Final = {
    "live": "needed by commits",
    "protected": "kept without a commit",
    "young": "younger than the grace",
}
WENT: Final = {
    "deleted": "deleted",
    "quarantined": "quarantined",
    "missing": "already gone",
    "revived": "needed again, kept",
    "failed": "failed",
}
DIGITS_SHOWN: Final = 12
"""The digits that are shown of a policy's checksum. `ebbtide gc show --json` has all."""

Pairs = list[tuple[str, str]]


def show_summary(cli: Cli, report: RunReport) -> None:
    """Prints the figures of a run, the last steps that failed, and the commands that can
    follow."""
    for each in report.unfinished:
        cli.output.warn(each["message"])
    pairs: Pairs = [("run", f"{report.run_id} {report.state}"), *place_of(cli, report.repository)]
    pairs += _when(report)
    if report.policy_sha256 is not None:
        pairs.append(("policy", f"sha256 {report.policy_sha256[:DIGITS_SHOWN]}"))
    if report.has_plan:
        pairs += _figures(report)
    if report.quarantine is not None:
        pairs.append(("quarantine", _quarantine_text(report.quarantine)))
    if report.error is not None:
        pairs.append(("error", f"{report.error['kind']}: {report.error['message']}"))
    if report.run_path:
        pairs.append(("files", report.run_path))
    if report.engine not in (None, DUCKDB, NO_SPARK):
        pairs.append(("engine", report.engine))
    show_block(cli, pairs + _ways_on(cli, report))


def show_block(cli: Cli, pairs: Pairs) -> None:
    """Prints names and values, with the program's version last."""
    cli.output.fields([(name, escaped(value)) for name, value in [*pairs, made_by()]])


def made_by() -> tuple[str, str]:
    """Returns the line with the program's version."""
    from importlib.metadata import version

    return "by", f"ebbtide {version('ebbtide')}"


def place_of(cli: Cli, repository: str) -> Pairs:
    """Returns the lines with the repository and its store."""
    found = [("repository", repository)]
    if not is_elsewhere(repository):
        directory = cli.store.directory
        where = "the database of EBBTIDE_DATABASE_URL" if directory is None else str(directory)
        found.append(("store", where))
    return found


def _when(report: RunReport) -> Pairs:
    started_at = instant_of(report.run_id)
    seconds = sum(report.seconds.values())
    began = "" if started_at is None else f"begun {date_text(started_at)} UTC, "
    took = f"{seconds:.1f} s" if seconds < 60 else time_text(seconds)
    return [("when", f"{began}{took} at work")]


def _figures(report: RunReport) -> Pairs:
    counts = report.counts
    kept = [f"{words} {_count_text(counts[name])}" for name, words in KEPT.items()]
    total = counts["live"] + counts["protected"] + counts["young"]
    pairs = [("kept", f"{_files_text(total)}: {', '.join(kept)}")]
    if not total.sized:
        pairs.append(("sizes", "only of candidates; --sizes all reads the size of every file"))
    if "deleted" not in counts:
        return [*pairs, ("would be deleted", _files_text(counts["candidate"]))]
    pairs += [
        (words, _files_text(counts[name]))
        for name, words in WENT.items()
        if counts[name].objects or (name == "deleted" and not counts["quarantined"].objects)
    ]
    locked = counts.get("locked")
    if locked is not None and locked.objects:
        pairs.append(("kept by a lock", f"versions of {_files_text(locked)}, which failed"))
    kinds = [f"{kind} {_count_text(count)}" for kind, count in report.deleted_kinds.items()]
    if kinds:
        pairs.append(("by kind", ", ".join(kinds)))
    expired = report.commits.get("expired", 0)
    if expired and report.state != "undone":
        pairs.append(("closed", count_text(expired, "commit")))
    return pairs


def _files_text(count: Count) -> str:
    size = f", {size_text(count.bytes_total)}" if count.sized else ""
    return count_text(count.objects, "file") + size


def _count_text(count: Count) -> str:
    size = f" ({size_text(count.bytes_total)})" if count.sized else ""
    return count_text(count.objects) + size


def _quarantine_text(quarantine: Mapping[str, Any]) -> str:
    """Returns the text about a run's quarantine: its files, and until when."""
    found = f"{count_text(quarantine['objects'], 'file')}, {size_text(quarantine['bytes'])}"
    if quarantine["state"] == "held":
        until = datetime.fromisoformat(quarantine["until"])
        return f"{found}, until {date_text(until)} UTC"
    done = {"undone": "restored", "purged": "deleted for good"}[quarantine["state"]]
    return f"{done}, {date_text(datetime.fromisoformat(quarantine['at']))} UTC"


def _ways_on(cli: Cli, report: RunReport) -> Pairs:
    """Returns the commands that can be used on the run next, as they are typed."""
    if not report.run_path or not report.has_plan:
        return []
    words = {}
    if report.state in ("planned", "incomplete"):
        words["carry out" if report.state == "planned" else "continue"] = "sweep"
    if report.quarantine is not None and report.quarantine["state"] == "held":
        words["undo"] = "undo"
    words |= {"verify": "verify", "show": "show"}
    named = (report.repository, report.run_id)
    return [(name, command_line(cli.context, ("gc", word), named)) for name, word in words.items()]
