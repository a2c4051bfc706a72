"""The option `--all` of `gc run` and `gc plan`: one repository after the other, or several at the
same time, with one summary at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from ebbtide.cli.collectors import (
    Run,
    is_small,
    make_engine,
    run_end,
    say_quarantine,
    say_versions,
    when_swept,
)
from ebbtide.cli.command import Cli
from ebbtide.cli.digests import FIGURES, require_writable, write_digest
from ebbtide.cli.fleet import Answer, Commands, Member, at_once, code_of, members
from ebbtide.cli.output import confirm
from ebbtide.cli.progress import planning_told
from ebbtide.errors import EbbtideError, ExitCode, InvalidInput
from ebbtide.gc import FOUND, OUTCOMES
from ebbtide.interrupts import is_ending
from ebbtide.text import count_text, known_size_text, size_text

if TYPE_CHECKING:
    from ebbtide.gc.engines.base import Engine
    from ebbtide.gc.parts import Count
    from ebbtide.gc.plan import Plan
    from ebbtide.gc.report import RunReport


WORST_FIRST: Final = (
    ExitCode.USAGE,
    ExitCode.REFUSED,
    ExitCode.FAILED,
    ExitCode.INCOMPLETE,
    ExitCode.DONE,
)
"""The first code that a repository has is the code of the command: first what needs a person, then
what a later run does by itself."""

FAILED: Final = "failed"
"""The outcome of a repository that has no report."""

MESSAGE_SHOWN: Final = 500
"""The most characters of the message of a defect."""

Opened = Callable[..., Run]
"""`open_collector` with the options of the command. Called with a name, and `engine`."""
Work = Callable[[Run, str], "RunReport"]
"""What is done with each repository. Called with its collector and its name."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of one repository: the report of its run, and an error. An error without a report
    prevented one; beside a sweep that has ended, a later step failed."""

    repository: Member
    report: RunReport | None
    error: dict[str, str] | None
    exit_code: ExitCode

    @property
    def state(self) -> str:
        """The state of the run, or FAILED."""
        return FAILED if self.report is None else self.report.state

    @property
    def changes(self) -> bool:
        """Whether the plan has candidates, or commits to close."""
        if self.report is None:
            return False
        commits = self.report.commits
        closed = commits.get("expired", 0) + commits.get("forgettable", 0)
        return bool(closed or self.count("candidate").objects)

    def count(self, name: str) -> Count:
        """A figure of the run; zero without one."""
        from ebbtide.gc.parts import Count

        return Count() if self.report is None else self.report.counts.get(name, Count())

    def to_json(self) -> dict[str, Any]:
        """Returns the outcome in JSON."""
        report = self.report
        return {
            "repository": self.repository.name,
            "repository_id": self.repository.repository_id,
            "run_id": None if report is None else report.run_id,
            "state": self.state,
            **_flat({name: self.count(name) for name in FIGURES}),
            "warnings": [] if report is None else list(report.warnings),
            "run_path": None if report is None else report.run_path,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Way:
    """How a command goes through its repositories.

    `file` names them, otherwise they are those of the store. `parallel` is the number of them at
    the same time. `digests` are files that get the summary, as text or as HTML.
    """

    file: Path | None = None
    parallel: int | None = None
    digests: Sequence[Path] = ()
    master: str | None = None
    conf: Sequence[str] = ()
    metrics_file: Path | None = None

    @property
    def is_parallel(self) -> bool:
        """Whether several repositories are at work at the same time."""
        return (self.parallel or 1) > 1


def plan_all(cli: Cli, opened: Opened, way: Way) -> None:
    """Plans a run of each repository, answers with a summary, and ends with the worst exit code."""
    whole = _All(cli, opened, way)
    if way.is_parallel:
        whole.apart(whole.repositories, whole.planned_apart)
    else:
        whole.each(whole.repositories, "plan", lambda run, _name: run.collector.plan())
    whole.finish()


def collect_all(cli: Cli, opened: Opened, way: Way, *, yes: bool) -> None:
    """Plans and sweeps a run of each repository, answers with a summary, and ends with the worst
    exit code. Without `yes`, makes all plans first, and asks once."""
    whole = _All(cli, opened, way)
    if way.is_parallel:
        whole.apart(whole.repositories, whole.run_apart if yes else whole.planned_apart)
    else:
        _collect_each(cli, whole, agreed=yes)
    planned = [each for each in whole.ended.values() if each.state == "planned"]
    if planned and not yes:
        whole.show_table()
        cli.when_interrupted(lambda: "Interrupted at the question: no plan was carried out")
        repositories = [each.repository for each in planned]
        if not _agreed(cli, whole, planned):
            cli.output.say("nothing was deleted; the plans stay: 'ebbtide gc sweep' needs a name")
        elif way.is_parallel:
            whole.apart(repositories, whole.swept_apart)
        else:
            whole.each(repositories, "sweep", whole.sweep)
    whole.finish()


def _collect_each(cli: Cli, whole: _All, *, agreed: bool) -> None:
    action = "run" if agreed else "plan"
    whole.each(
        whole.repositories, action, lambda run, name: _collect(cli, whole, run, name, agreed=agreed)
    )


def _collect(cli: Cli, whole: _All, run: Run, name: str, *, agreed: bool) -> RunReport:
    def confirmed(plan: Plan) -> bool:
        if agreed:
            whole.sweeping = plan.run_id
            when_swept(cli, run, name, plan.run_id)
        return agreed

    return run.collector.run(confirmed)


def _agreed(cli: Cli, whole: _All, planned: Sequence[Ended]) -> bool:
    """Asks once for all plans. Asks nothing if no plan would change anything."""
    from ebbtide.gc.parts import Count
    from ebbtide.gc.plan import REMOVAL

    gone = [each for each in planned if each.report is not None and each.report.mode == REMOVAL]
    kept = [each for each in planned if each not in gone and each.changes]
    opened = {each.repository: whole.run_of(each.repository) for each in kept}
    quarantined = [each for each in kept if opened[each.repository].quarantine is not None]
    deleted = [each for each in kept if each not in quarantined]
    parts = []
    for doing, ended in (("quarantine", quarantined), ("delete", deleted)):
        if ended:
            total = sum((each.count("candidate") for each in ended), Count())
            run = opened[ended[0].repository]
            if run.quarantine is not None:
                say_quarantine(cli, run.quarantine, total.objects)
            say_versions(cli, run)
            parts.append(f"{doing} {_of(total, ended)}, and close their expired commits")
    if gone:
        total = sum((each.count("candidate") for each in gone), Count())
        are = "it is" if len(gone) == 1 else "they are"
        parts.append(f"delete {_of(total, gone)} without undo, because {are} gone")
    return not parts or confirm(f"{'; and '.join(parts)}?", yes=False)


def _of(total: Count, ended: Sequence[Ended]) -> str:
    files = f"{count_text(total.objects, 'file')} ({size_text(total.bytes_total)})"
    return f"{files} of {count_text(len(ended), 'repository', 'repositories')}"


class _All:
    """The repositories of the command, and what became of each. In this process, one engine is for
    all of them.

    `runs` are by repository, `ended` too, and `run_ids` by the name that was opened. `sweeping` is
    the run whose sweep has begun in the present repository.
    """

    def __init__(self, cli: Cli, opened: Opened, way: Way) -> None:
        self._cli = cli
        self._opened = opened
        self._way = way
        self.repositories = members(cli, way.file)
        require_writable(way.digests)
        self.runs: dict[Member, Run] = {}
        self.run_ids: dict[str, str] = {}
        self.ended: dict[Member, Ended] = {}
        self.sweeping: str | None = None
        self._commands = Commands(cli)
        self._engine: Engine | None = None
        if self.repositories and not way.is_parallel:
            self._engine = make_engine(
                cli.settings,
                way.master,
                cli.progress,
                conf=way.conf,
                starting=True,
                short=is_small(cli),
            )

    def run_of(self, repository: Member) -> Run:
        """Returns the collector of a repository, which is opened once."""
        run = self.runs.get(repository)
        if run is None:
            from ebbtide.gc.engines.duckdb import DuckEngine

            # With several at the same time, the engines are those of other processes.
            engine = DuckEngine() if self._engine is None else self._engine
            run = self.runs[repository] = self._opened(repository.opened_by, engine=engine)
        return run

    def apart(self, repositories: Sequence[Member], work: Callable[[Member], Ended]) -> None:
        """Does work with several repositories at the same time, by processes of their own."""
        cli, total = self._cli, len(repositories)
        cli.told_besides = self._told
        cli.when_interrupted(lambda: "Interrupted: the runs at work were interrupted too")
        results = at_once(repositories, self._way.parallel or 1, work, self._commands.interrupt)
        for number, (repository, ended) in enumerate(results, 1):
            self.ended[repository] = ended
            cli.output.say(f"{repository.name}: {ended.state} ({number} of {total})")

    def planned_apart(self, repository: Member) -> Ended:
        """Plans a run by a process of its own."""
        answer = self._commands.answer(("gc", "plan"), (repository.opened_by,))
        return _ended_apart(repository, answer)

    def swept_apart(self, repository: Member, planned: Ended | None = None) -> Ended:
        """Carries out the plan that this command made, by a process of its own."""
        planned = planned or self.ended[repository]
        assert planned.report is not None
        named = (repository.opened_by, planned.report.run_id)
        ended = _ended_apart(repository, self._commands.answer(("gc", "sweep"), named))
        if ended.report is None:
            # After a sweep, a later step can have failed: the record says what the sweep did.
            shown = self._commands.answer(("gc", "show"), named)
            found = _ended_apart(repository, shown).report
            if found is not None and found.has_outcomes:
                return replace(ended, report=found)
        return ended

    def run_apart(self, repository: Member) -> Ended:
        """Plans and sweeps a run by processes of their own."""
        planned = self.planned_apart(repository)
        return self.swept_apart(repository, planned) if planned.state == "planned" else planned

    def each(self, repositories: Sequence[Member], action: str, work: Work) -> None:
        """Does `work`, which is called `action` elsewhere, with each repository. Goes on after a
        failure."""
        cli = self._cli
        for number, repository in enumerate(repositories, 1):
            cli.output.say(f"{repository.name}: {number} of {len(repositories)}")
            cli.told_besides = partial(self._told, repository)
            cli.progress.restart()
            self.ended[repository] = self._end_of(repository, action, work)
            cli.told_besides = self._told
            cli.when_interrupted(lambda: "Interrupted between two repositories")

    def sweep(self, run: Run, name: str) -> RunReport:
        """Carries out the plan that this command made of a repository."""
        run_id = self.sweeping = self.run_ids[name]
        when_swept(self._cli, run, name, run_id)
        return run.collector.sweep(run_id)

    def _end_of(self, repository: Member, action: str, work: Work) -> Ended:
        from ebbtide.gc.report import EXIT_CODES

        self.sweeping = None
        try:
            with run_end(self._cli, repository.name, action, self._way.metrics_file) as ended:
                report = ended(self._report_of(repository, work))
        except Exception as error:
            opened = repository in self.runs
            wrong = isinstance(error, InvalidInput) and not self.ended and not opened
            # Options that are wrong for the first are wrong for all. After an interrupt, an error
            # can come from it.
            if wrong or is_ending():
                raise
            if isinstance(error, EbbtideError):
                kind, text, code = error.kind, error.message, error.exit_code
            else:
                kind, code = "internal", ExitCode.FAILED
                text = f"a defect in this program: {type(error).__name__}: {error}"[:MESSAGE_SHOWN]
            return Ended(repository, self._swept(repository), {"kind": kind, "message": text}, code)
        failed = next(iter(report.unfinished), None) if report.error is None else report.error
        told = None if failed is None else dict(failed)
        return Ended(repository, report, told, EXIT_CODES[report.state])

    def _swept(self, repository: Member) -> RunReport | None:
        """Returns the report of a sweep after which an error came; None if no sweep has ended."""
        run = self.runs.get(repository)
        if run is None or self.sweeping is None:
            return None
        with suppress(EbbtideError):
            report = run.collector.show(self.sweeping)
            return report if report.has_outcomes else None
        return None

    def _report_of(self, repository: Member, work: Work) -> RunReport:
        cli, name, run = self._cli, repository.opened_by, self.run_of(repository)
        cli.when_interrupted(lambda: planning_told(run.progress))
        with run.progress:
            report = work(run, name)
        self.run_ids[name] = report.run_id
        return report

    def _told(self, present: Member | None = None) -> str:
        """Returns the text about the others than the `present` repository, for an interrupt."""
        others = dict.fromkeys(self.repositories, "not begun")
        others |= {each: ended.state for each, ended in self.ended.items()}
        about = ""
        if present is not None:
            others.pop(present)
            about = f"This was about {present.name}. The others: "
        counted = Counter(others.values())
        states = ", ".join(f"{count} {state}" for state, count in counted.items()) or "none"
        return f"\n{about}{states}. The same command, begun again, does all of them"

    def show_table(self) -> None:
        """Prints a line for each repository, and the warnings, without the errors' messages. Prints
        nothing with `--json`."""
        output = self._cli.output
        if output.as_json:
            return
        figures = [head for name in FIGURES for head in ((FOUND | OUTCOMES)[name], "size")]
        rows = [
            [
                ended.repository.name,
                "" if ended.report is None else ended.report.run_id,
                ended.state,
                *_texts({name: ended.count(name) for name in FIGURES}),
                "" if ended.error is None else ended.error["kind"],
            ]
            for ended in self._in_order()
        ]
        if len(rows) > 1:
            rows.append(["(all)", "", "", *_texts(self._totals()), ""])
        output.table(
            ["repository", "run", "outcome", *figures, "error"],
            rows,
            right=figures,
            none="no repositories: make one with 'ebbtide repo create NAME'",
        )
        for ended in self.ended.values():
            for warning in () if ended.report is None else ended.report.told:
                output.warn(f"{ended.repository.name}: {warning}")

    def _in_order(self) -> list[Ended]:
        """Returns the outcomes in the order of the repositories."""
        return [self.ended[each] for each in self.repositories if each in self.ended]

    def _totals(self) -> dict[str, Count]:
        from ebbtide.gc.parts import Count

        return {
            name: sum((ended.count(name) for ended in self.ended.values()), Count())
            for name in FIGURES
        }

    def finish(self) -> None:
        """Answers with the summary, and ends with the worst exit code."""
        ended, output = self._in_order(), self._cli.output
        failed = [each for each in ended if each.error is not None]
        document = {
            "repositories": [each.to_json() for each in ended],
            "totals": {
                "repository_count": len(ended),
                "error_count": len(failed),
                **_flat(self._totals()),
            },
        }
        output.answer(document, self.show_table)
        for file in self._way.digests:
            write_digest(file, document, datetime.now(UTC))
        for each in failed:
            output.error(f"{each.repository.name}: {(each.error or {})['message']}")
        codes = {each.exit_code for each in ended} | {ExitCode.DONE}
        raise typer.Exit(next(code for code in WORST_FIRST if code in codes))


def _ended_apart(repository: Member, answer: Answer) -> Ended:
    """Returns the outcome of a repository from the answer of a command on it."""
    from ebbtide.gc.report import EXIT_CODES, RunReport

    document, code = answer.document, code_of(answer)
    if document is not None and "run_id" in document:
        report = RunReport.from_json(document)
        failed = next(iter(report.unfinished), None) if report.error is None else report.error
        error = None if failed is None else dict(failed)
        return Ended(repository, report, error, EXIT_CODES[report.state])
    told = None if document is None else document.get("error")
    kind, message = "internal", f"the process ended with code {answer.exit_code}: {answer.said}"
    if isinstance(told, dict):
        kind, message = str(told.get("kind")), str(told.get("message"))
    return Ended(repository, None, {"kind": kind, "message": message}, code)


def _flat(counts: Mapping[str, Count]) -> dict[str, int | None]:
    """Returns each figure as two flat fields, as reports have them."""
    flat: dict[str, int | None] = {}
    for name, count in counts.items():
        flat[f"{name}_count"], flat[f"{name}_bytes"] = count.objects, count.known_bytes
    return flat


def _texts(counts: Mapping[str, Count]) -> list[str]:
    return [
        text
        for count in counts.values()
        for text in (count_text(count.objects), known_size_text(count.known_bytes))
    ]
