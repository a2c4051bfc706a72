"""The command `explain`: why a file or commit still exists, until when, or why it was deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ebbtide.cli.command import Cli, CollectedArgument, command
from ebbtide.cli.gc import GraceOption, RunDirOption
from ebbtide.text import count_text, date_text, escaped, short_id, size_text

if TYPE_CHECKING:
    from ebbtide.audit.answers import (
        ExplainedAddress,
        ExplainedCommit,
        Keeper,
        PastHolder,
        Went,
    )
    from ebbtide.audit.explain import Explainer
    from ebbtide.quarantined import Fate

LIMIT: Final = 20


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "explain")(explain)


def explain(
    cli: Cli,
    repository: CollectedArgument,
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="An address within the storage root, a commit or snapshot id, or a ref.",
            show_default=False,
        ),
    ],
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            help="If WHAT is a ref or commit: the path of an object in it.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most rows of each list.")
    ] = LIMIT,
    grace: GraceOption = None,
    run_dir: RunDirOption = None,
) -> None:
    """Explain why a file or commit still exists and until when, or which run deleted it.

    The list begins with protections that need no commit. Then come commits that a ref points at,
    and then other commits, newest first. Changes nothing.
    """
    explainer = _open(cli, repository, limit=limit, grace=grace, run_dir=run_dir)
    cli.when_interrupted(lambda: "Interrupted before its end: nothing was changed")
    with cli.progress:
        cli.progress("explain", "start")
        found = explainer.explain(what, path)
        cli.progress("explain", "end")

    from ebbtide.audit.answers import ExplainedAddress

    def show() -> None:
        if isinstance(found, ExplainedAddress):
            _show_address(cli, found)
        else:
            _show_commit(cli, found)

    cli.output.answer(found.to_json(), show)


def _open(
    cli: Cli, repository: str, *, limit: int, grace: str | None, run_dir: str | None
) -> Explainer:
    from ebbtide.api.collected import open_collected
    from ebbtide.gc.engines.duckdb import DuckEngine

    found = open_collected(
        repository, settings=cli.settings, store=lambda: cli.store, run_dir=run_dir
    )
    engine = DuckEngine()
    cli.progress.watch(engine.meter)
    return found.explainer(limit=limit, grace=grace, engine=engine)


def _show_address(cli: Cli, found: ExplainedAddress) -> None:
    from ebbtide.audit.answers import ADDRESS_STATES

    facts = [] if found.name is None else [("name", escaped(found.name))]
    facts += [("address", escaped(found.address)), ("kind", found.kind)]
    if found.target is not None:
        facts.append(("written for", found.target))
    if found.size_bytes is not None:
        facts.append(("size", size_text(found.size_bytes)))
        facts.append(("written", f"{date_text(found.last_modified)} UTC"))
    facts.append(("state", ADDRESS_STATES[found.state]))
    cli.output.fields(facts)
    _show_keepers(cli, found)
    _show_history(cli, found.history)
    if found.went is None:
        _show_holders(cli, found)
    else:
        _show_went(cli, found.went)
    if found.purged is not None:
        purged = found.purged
        cli.output.line()
        cli.output.line(
            f"purge {purged.purge_id} closed it on {date_text(purged.at)} UTC "
            f"({purged.state}): {escaped(purged.reason)}"
        )
    _show_end(cli, found)


def _show_keepers(cli: Cli, found: ExplainedAddress) -> None:
    if not found.keepers:
        return
    cli.output.line()
    cli.output.line(f"kept by{_of_all(len(found.keepers), found.keeper_count)}:")
    cli.output.table(
        ["what", "since", "why", "until"],
        [[*_keeper_row(keeper), date_text(keeper.until)] for keeper in found.keepers],
    )


def _keeper_row(keeper: Keeper) -> list[str]:
    if keeper.commit_id is None:
        return [keeper.reason, date_text(keeper.since), keeper.where or ""]
    why = [keeper.reason]
    if keeper.by == "record":
        why.append("the file is part of the commit's record")
    if keeper.hold is not None and not keeper.reason.startswith("held"):
        why.append(f"held: {keeper.hold}" if keeper.hold else "held")
    if keeper.leased_until is not None and not keeper.reason.startswith("leased"):
        why.append(f"leased until {date_text(keeper.leased_until)}")
    why += [ref for ref in keeper.refs if ref not in keeper.reason]
    what = f"commit {short_id(keeper.commit_id)}"
    return [what, date_text(keeper.created_at), "; ".join(why)]


def _show_history(cli: Cli, sentences: Sequence[str]) -> None:
    if sentences:
        cli.output.line()
        for each in sentences:
            cli.output.line(escaped(each))


def _show_holders(cli: Cli, found: ExplainedAddress) -> None:
    if found.past_holders:
        cli.output.line()
        count = _of_all(len(found.past_holders), found.past_holder_count)
        cli.output.line(f"commits that have it and do not keep it{count}:")
        _show_commits(cli, found.past_holders)
    if found.unread_nodes:
        cli.output.line()
        nodes = count_text(found.unread_nodes, "node")
        cli.output.line(
            f"{nodes} of commits whose data is not kept were not read: more of these commits may "
            "have it"
        )


def _show_commits(cli: Cli, commits: Sequence[PastHolder]) -> None:
    cli.output.table(
        ["commit", "created", "refs"],
        [
            [short_id(each.commit_id), date_text(each.created_at), ", ".join(each.refs)]
            for each in commits
        ],
    )


def _show_went(cli: Cli, went: Went) -> None:
    from ebbtide.retention import Policy

    cli.output.line()
    cli.output.line(f"run {went.run_id} {went.words}:")
    facts = [("planned", f"{date_text(went.planned_at)} UTC")]
    if went.at is not None:
        facts.append(("fence", f"{date_text(went.at)} UTC"))
    facts += _way_back(went.fate)
    if went.policy is not None:
        facts.append(("policy", Policy.parse(went.policy).describe()))
    cli.output.fields([(f"  {name}", value) for name, value in facts])
    if went.commits:
        count = _of_all(len(went.commits), went.commit_count)
        cli.output.line(f"commits that had it, and expired with the run{count}:")
        _show_commits(cli, went.commits)
    else:
        cli.output.line("no commit that expired with the run is known to have had it")


def _way_back(fate: Fate | None) -> list[tuple[str, str]]:
    """Returns the lines about data in quarantine: until when it is there, and the command that
    restores it."""
    if fate is None or fate.restore_command is None:
        return []
    return [("quarantine", fate.end), ("restore", fate.restore_command)]


def _show_end(cli: Cli, found: ExplainedAddress) -> None:
    if found.collectable_at is None and found.kept_by is None:
        return
    cli.output.line()
    if found.collectable_at is None:
        cli.output.line(f"never collectable while nothing changes: {found.kept_by}")
    else:
        cli.output.line(
            f"collectable from {date_text(found.collectable_at)} UTC on, if nothing changes"
        )


def _show_commit(cli: Cli, found: ExplainedCommit) -> None:
    facts = [("commit", found.commit_id)]
    if found.created_at is not None:
        facts.append(("created", f"{date_text(found.created_at)} UTC"))
    facts.append(("state", found.words))
    if found.reason is not None:
        facts.append(("why", escaped(found.reason)))
    if found.hold is not None:
        facts.append(("held", escaped(found.hold) or "yes"))
    if found.leased_until is not None:
        facts.append(("leased until", f"{date_text(found.leased_until)} UTC"))
    if found.expired is not None:
        went = found.expired
        by = f"by run {went.run_id}" if went.run_id is not None else escaped(went.reason or "")
        when = f", {date_text(went.at)} UTC" if went.at is not None else ""
        facts.append(("taken", f"{by}{when}"))
    if found.fate is not None and found.fate.restore_command is None:
        facts.append(("data", f"the run {found.fate.words}"))
    facts += _way_back(found.fate)
    cli.output.fields(facts)
    if found.refs:
        cli.output.line()
        cli.output.line(f"in the history of{_of_all(len(found.refs), found.ref_count)}:")
        cli.output.table(
            ["kind", "name", "commits above", "expires", ""],
            [
                [
                    ref.kind,
                    ref.name,
                    str(ref.distance),
                    date_text(ref.expires_at),
                    "" if ref.keeps_data else "keeps no data",
                ]
                for ref in found.refs
            ],
            right=["commits above"],
        )
    _show_history(cli, found.history)
    _show_commit_end(cli, found)


def _show_commit_end(cli: Cli, found: ExplainedCommit) -> None:
    if found.state not in ("kept", "expired", "closed"):
        return
    lines = []
    if found.state == "kept":
        until = (
            f"from {date_text(found.data_until)} UTC on"
            if found.data_until is not None
            else f"never: {found.data_kept_by}"
        )
        lines.append(("its data can be deleted", until))
    record = found.record_until
    until = "never" if record is None else f"from {date_text(record)} UTC on"
    lines.append(("its record can be deleted", until))
    cli.output.line()
    cli.output.line("if nothing changes:")
    cli.output.fields([(f"  {name}", value) for name, value in lines])


def _of_all(shown: int, count: int) -> str:
    return "" if shown == count else f" (the first {shown:,} of {count:,})"
