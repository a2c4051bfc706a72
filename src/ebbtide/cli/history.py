"""The commands `log` and `diff`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import documents
from ebbtide.cli.command import Cli, RefArgument, RepositoryArgument, command
from ebbtide.cli.lifecycle import warn_of_expiry
from ebbtide.escaping import escaped
from ebbtide.text import age_at, count_text, date_text, one_line, short_id, size_text

if TYPE_CHECKING:
    from ebbtide.quarantined import Fate
    from ebbtide.store.content.diffing import Change
    from ebbtide.store.database.commits import CommitRecord

MARKS = {"added": "+", "removed": "-", "changed": "~"}


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    command(app, "log")(log)
    command(app, "diff")(diff)


def log(
    cli: Cli,
    repository: RepositoryArgument,
    ref: RefArgument,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow only the first parent of each merge.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The most commits to list.")] = 100,
    after: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="List only commits after this id.", show_default=False),
    ] = None,
) -> None:
    """List a commit and its ancestors, youngest first, also expired ones."""
    warn_of_expiry(cli, repository, ref)
    opened = cli.repository(repository)
    found = opened.commits.log(ref, first_parent=first_parent, after=after, amount=limit)
    fates = opened.fates({record.closed_by for record in found if record.closed_by})

    def show() -> None:
        now = datetime.now(UTC)
        cli.output.table(
            ["commit", "created", "age", "state", "message"],
            [
                [
                    short_id(record.commit_id),
                    date_text(record.created_at),
                    age_at(record.created_at, now),
                    _state(record, fates),
                    one_line(record.message),
                ]
                for record in found
            ],
            right=["age"],
        )
        for fate in fates.values():
            if fate.restore_command is not None:
                cli.output.say(f"quarantined {fate.end}: '{fate.restore_command}' restores it")
        if len(found) == limit:
            cli.output.say(f"more may follow: --after {found[-1].commit_id}")

    cli.output.answer({"commits": [documents.commit(record, fates) for record in found]}, show)


def _state(record: CommitRecord, fates: Mapping[str, Fate]) -> str:
    fate = documents.fate_of_commit(record, fates)
    is_aside = fate is not None and fate.restore_command is not None
    return "quarantined" if is_aside else documents.commit_state(record)


def diff(
    cli: Cli,
    repository: RepositoryArgument,
    left: RefArgument,
    right: Annotated[
        str | None,
        typer.Argument(
            metavar="RIGHT",
            help="The ref to compare with. Default: the staged changes of the branch REF.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        str,
        typer.Option(metavar="PREFIX", help="Only paths that begin with this.", show_default=False),
    ] = "",
) -> None:
    """Show the paths that differ between two refs, or that are staged on a branch."""
    warn_of_expiry(cli, repository, left, *([] if right is None else [right]))
    commits = cli.repository(repository).commits
    changes = (
        commits.diff_staged(left, prefix=prefix)
        if right is None
        else commits.diff(left, right, prefix=prefix)
    )
    show_changes(cli, changes)


def show_changes(cli: Cli, changes: Iterable[Change]) -> None:
    """Answers with the paths that differ."""
    if cli.output.as_json:
        cli.output.answer({"changes": [_document(change) for change in changes]}, lambda: None)
        return
    count = 0
    for change in changes:
        count += 1
        cli.output.line(f"{MARKS[change.kind]} {escaped(change.path)}{_sizes(change)}")
    cli.output.say(count_text(count, "path differs", "paths differ"))


def _document(change: Change) -> documents.Document:
    return {
        "path": change.path,
        "kind": change.kind,
        "left": None if change.left is None else documents.entry(change.left),
        "right": None if change.right is None else documents.entry(change.right),
    }


def _sizes(change: Change) -> str:
    sizes = [size_text(side.size_bytes) for side in (change.left, change.right) if side is not None]
    return f"  ({' → '.join(sizes)})"
