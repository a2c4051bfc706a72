"""The option `--all` of `gc run` and `gc plan`: one repository of the store after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from ebbtide.cli.output import confirm
from ebbtide.cli.progress import planning_told
from ebbtide.errors import EbbtideError, ExitCode, InvalidInput
from ebbtide.interrupts import is_ending
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.text import count_text, known_size_text, size_text

if TYPE_CHECKING:
    from ebbtide.gc.engines.base import Engine
    from ebbtide.gc.parts import Count
    from ebbtide.gc.plan import Plan
    from ebbtide.gc.report import RunReport
    from ebbtide.store.repositories.catalog import Catalogued


WORST_FIRST: Final = (
    ExitCode.USAGE,
    ExitCode.REFUSED,
    ExitCode.FAILED,
    ExitCode.INCOMPLETE,
    ExitCode.DONE,
)
"""The first code that a repository has is the code of the command: first what needs a person, then
what a later run does by itself."""

SUMMED: Final = ("candidate", "deleted", "quarantined")
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

    repository: Catalogued
    report: RunReport | None
    error: dict[str, str] | None
    exit_code: ExitCode

    @property
    def state(self) -> str:
        """The state of the run, or FAILED."""
        return FAILED if self.report is None else self.report.state

    def count(self, name: str) -> Count:
        """A figure of the run; zero without one."""
        from ebbtide.gc.parts import Count

        return Count() if self.report is None else self.report.counts.get(name, Count())

    def to_json(self) -> dict[str, Any]:
        """Returns the outcome in JSON."""
        report, info = self.report, self.repository.info
        return {
            "repository": info.name,
            "repository_id": info.repository_id,
            "run_id": None if report is None else report.run_id,
            "state": self.state,
            **_flat({name: self.count(name) for name in SUMMED}),
            "warnings": [] if report is None else list(report.warnings),
            "run_path": None if report is None else report.run_path,
            "error": self.error,
        }


def plan_all(
    cli: Cli,
    opened: Opened,
    *,
    master: str | None,
    conf: Sequence[str],
    metrics_file: Path | None,
) -> None:
    """Plans a run of each repository, answers with a summary, and ends with the worst exit code."""
    whole = _All(cli, opened, master, conf, metrics_file)
    whole.each(whole.repositories, "plan", lambda run, _name: run.collector.plan())
    whole.finish()


def collect_all(
    cli: Cli,
    opened: Opened,
    *,
    master: str | None,
    conf: Sequence[str],
    yes: bool,
    metrics_file: Path | None,
) -> None:
    """Plans and sweeps a run of each repository, answers with a summary, and ends with the worst
    exit code. Without `yes`, makes all plans first, and asks once."""
    whole = _All(cli, opened, master, conf, metrics_file)
    action = "run" if yes else "plan"
    whole.each(
        whole.repositories, action, lambda run, name: _collect(cli, whole, run, name, agreed=yes)
    )
    planned = [each for each in whole.ended.values() if each.state == "planned"]
    if planned and not yes:
        whole.show_table()
        cli.when_interrupted(lambda: "Interrupted at the question: no plan was carried out")
        if _agreed(cli, whole, planned):
            whole.each([each.repository for each in planned], "sweep", whole.sweep)
        else:
            cli.output.say("nothing was deleted; the plans stay: 'ebbtide gc sweep' needs a name")
    whole.finish()


def _collect(cli: Cli, whole: _All, run: Run, name: str, *, agreed: bool) -> RunReport:
    def confirmed(plan: Plan) -> bool:
        if agreed:
            whole.sweeping = plan.run_id
            when_swept(cli, run, name, plan.run_id)
        return agreed

    return run.collector.run(confirmed)


def _agreed(cli: Cli, whole: _All, planned: Sequence[Ended]) -> bool:
    """Asks once for all plans."""
    from ebbtide.gc.parts import Count
    from ebbtide.gc.plan import REMOVAL

    parts = []
    gone = [each for each in planned if each.report is not None and each.report.mode == REMOVAL]
    kept = [each for each in planned if each not in gone]
    if kept:
        total = sum((each.count("candidate") for each in kept), Count())
        # All repositories that are not gone have the same quarantine.
        quarantine = whole.runs[kept[0].repository.info.repository_id].quarantine
        if quarantine is not None:
            say_quarantine(cli, quarantine, total.objects)
        say_versions(cli, whole.runs[kept[0].repository.info.repository_id])
        doing = "delete" if quarantine is None else "quarantine"
        parts.append(f"{doing} {_of(total, kept)}, and close their expired commits")
    if gone:
        total = sum((each.count("candidate") for each in gone), Count())
        are = "it is" if len(gone) == 1 else "they are"
        parts.append(f"delete {_of(total, gone)} without undo, because {are} gone")
    return confirm(f"{'; and '.join(parts)}?", yes=False)


def _of(total: Count, ended: Sequence[Ended]) -> str:
    files = f"{count_text(total.objects, 'file')} ({size_text(total.bytes_total)})"
    return f"{files} of {count_text(len(ended), 'repository', 'repositories')}"


class _All:
    """All repositories of the store, and what became of each. One engine is for all of them.

    `runs` and `ended` are by id of the repository, and `run_ids` by the name that was opened.
    `sweeping` is the run whose sweep has begun in the present repository.
    """

    def __init__(
        self,
        cli: Cli,
        opened: Opened,
        master: str | None,
        conf: Sequence[str],
        metrics_file: Path | None,
    ) -> None:
        self._cli = cli
        self._opened = opened
        self._metrics_file = metrics_file
        catalog = cli.store.catalog
        # Those in the trash can be restored: 'gc run' does not know them either.
        self.repositories = [*catalog.list(), *catalog.gone()]
        self.runs: dict[str, Run] = {}
        self.run_ids: dict[str, str] = {}
        self.ended: dict[str, Ended] = {}
        self.sweeping: str | None = None
        self._engine: Engine | None = None
        if self.repositories:
            self._engine = make_engine(
                cli.settings, master, cli.progress, conf=conf, starting=True, short=is_small(cli)
            )

    def each(self, repositories: Sequence[Catalogued], action: str, work: Work) -> None:
        """Does `work`, which is called `action` elsewhere, with each repository. Goes on after a
        failure."""
        cli = self._cli
        for number, repository in enumerate(repositories, 1):
            cli.output.say(f"{repository.info.name}: {number} of {len(repositories)}")
            cli.told_besides = partial(self._told, repository)
            cli.progress.restart()
            self.ended[repository.info.repository_id] = self._end_of(repository, action, work)
            cli.told_besides = self._told
            cli.when_interrupted(lambda: "Interrupted between two repositories")

    def sweep(self, run: Run, name: str) -> RunReport:
        """Carries out the plan that this command made of a repository."""
        run_id = self.sweeping = self.run_ids[name]
        when_swept(self._cli, run, name, run_id)
        return run.collector.sweep(run_id)

    def _end_of(self, repository: Catalogued, action: str, work: Work) -> Ended:
        from ebbtide.gc.report import EXIT_CODES

        self.sweeping = None
        try:
            with run_end(self._cli, repository.info.name, action, self._metrics_file) as ended:
                report = ended(self._report_of(repository, work))
        except Exception as error:
            opened = repository.info.repository_id in self.runs
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

    def _swept(self, repository: Catalogued) -> RunReport | None:
        """Returns the report of a sweep after which an error came; None if no sweep has ended."""
        run = self.runs.get(repository.info.repository_id)
        if run is None or self.sweeping is None:
            return None
        with suppress(EbbtideError):
            report = run.collector.show(self.sweeping)
            return report if report.has_outcomes else None
        return None

    def _report_of(self, repository: Catalogued, work: Work) -> RunReport:
        info, cli = repository.info, self._cli
        # The name of a gone repository can be another one's by now.
        name = info.repository_id if repository.state is LifecycleState.GONE else info.name
        run = self.runs.get(info.repository_id)
        if run is None:
            run = self._opened(name, engine=self._engine)
            self.runs[info.repository_id] = run
        cli.when_interrupted(lambda: planning_told(run.progress))
        with run.progress:
            report = work(run, name)
        self.run_ids[name] = report.run_id
        return report

    def _told(self, present: Catalogued | None = None) -> str:
        """Returns the text about the others than the `present` repository, for an interrupt."""
        others = {each.info.repository_id: "not begun" for each in self.repositories}
        others |= {each: ended.state for each, ended in self.ended.items()}
        about = ""
        if present is not None:
            others.pop(present.info.repository_id)
            about = f"This was about {present.info.name}. The others: "
        counted = Counter(others.values())
        states = ", ".join(f"{count} {state}" for state, count in counted.items()) or "none"
        return f"\n{about}{states}. The same command, begun again, does all of them"

    def show_table(self) -> None:
        """Prints a line for each repository, and the warnings, without the errors' messages. Prints
        nothing with `--json`."""
        output = self._cli.output
        if output.as_json:
            return
        figures = [f"{name} {what}" for name in SUMMED for what in ("files", "size")]
        rows = [
            [
                ended.repository.info.name,
                "" if ended.report is None else ended.report.run_id,
                ended.state,
                *_texts({name: ended.count(name) for name in SUMMED}),
                "" if ended.error is None else ended.error["kind"],
            ]
            for ended in self.ended.values()
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
                output.warn(f"{ended.repository.info.name}: {warning}")

    def _totals(self) -> dict[str, Count]:
        from ebbtide.gc.parts import Count

        return {
            name: sum((ended.count(name) for ended in self.ended.values()), Count())
            for name in SUMMED
        }

    def finish(self) -> None:
        """Answers with the summary, and ends with the worst exit code."""
        ended, output = list(self.ended.values()), self._cli.output
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
        for each in failed:
            output.error(f"{each.repository.info.name}: {(each.error or {})['message']}")
        codes = {each.exit_code for each in ended} | {ExitCode.DONE}
        raise typer.Exit(next(code for code in WORST_FIRST if code in codes))


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
