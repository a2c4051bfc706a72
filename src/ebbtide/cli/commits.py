"""The commands that change a branch: `commit`, `merge`, `revert`, `reset`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ebbtide.cli import completing, documents
from ebbtide.cli.command import (
    BranchArgument,
    Cli,
    RefArgument,
    RepositoryArgument,
    YesOption,
    command,
)
from ebbtide.cli.parsing import DATE_FORMS, parse_date, parse_pairs
from ebbtide.errors import InvalidInput
from ebbtide.escaping import escaped, shown
from ebbtide.text import count_text, one_line, short_id

if TYPE_CHECKING:
    from ebbtide.store.commits.commits import Commits
    from ebbtide.store.database.commits import CommitRecord
    from ebbtide.store.repository import Repository

MessageOption = Annotated[
    str | None,
    typer.Option(
        "--message", "-m", metavar="TEXT", help="Message of the commit.", show_default=False
    ),
]
MetaOption = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="NAME=VALUE", help="Metadata; repeatable.", show_default=False),
]
DateOption = Annotated[
    str | None,
    typer.Option(
        "--date",
        metavar="DATE",
        help=f"Date, for imported histories: {DATE_FORMS}. It cannot be in the future, before the "
        "parent's date, or before 1970.",
        show_default=False,
    ),
]
CommitterOption = Annotated[
    str,
    typer.Option("--committer", metavar="NAME", help="Name of the committer.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    for name, function in (
        ("commit", commit),
        ("merge", merge),
        ("revert", revert),
        ("reset", reset),
    ):
        command(app, name)(function)


def commit(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    message: Annotated[
        str,
        typer.Option(
            "--message", "-m", metavar="TEXT", help="Message of the commit.", show_default=False
        ),
    ],
    meta: MetaOption = None,
    date: DateOption = None,
    committer: CommitterOption = "",
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Commit even if nothing is staged.")
    ] = False,
) -> None:
    """Commit the staged changes of a branch."""
    made = cli.repository(repository).commits.commit(
        branch,
        message,
        metadata=parse_pairs(meta or [], option="--meta"),
        date=None if date is None else parse_date(date),
        committer=committer,
        allow_empty=allow_empty,
    )
    _answer(cli, made, branch)


def merge(
    cli: Cli,
    repository: RepositoryArgument,
    source: RefArgument,
    branch: BranchArgument,
    message: MessageOption = None,
    strategy: Annotated[
        Literal["source-wins", "dest-wins"] | None,
        typer.Option(
            help="Side that wins if both changed a path. Default: such a merge is refused.",
            show_default=False,
        ),
    ] = None,
    meta: MetaOption = None,
    date: DateOption = None,
    committer: CommitterOption = "",
) -> None:
    """Merge the changes of a ref into a branch."""
    made = cli.repository(repository).commits.merge(
        source,
        branch,
        message=message,
        strategy=strategy,
        metadata=parse_pairs(meta or [], option="--meta"),
        date=None if date is None else parse_date(date),
        committer=committer,
    )
    _answer(cli, made, branch)


def revert(
    cli: Cli,
    repository: RepositoryArgument,
    ref: RefArgument,
    branch: BranchArgument,
    message: MessageOption = None,
    parent: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="For a merge: the parent to go back to, counted from 1."
        ),
    ] = 1,
    date: DateOption = None,
    committer: CommitterOption = "",
) -> None:
    """Undo the changes of one commit on a branch, with a new commit."""
    found = cli.repository(repository)
    _require_source_first(found, ref, branch)
    made = found.commits.revert(
        branch,
        ref,
        parent_number=parent,
        message=message,
        date=None if date is None else parse_date(date),
        committer=committer,
    )
    _answer(cli, made, branch)


def _require_source_first(repository: Repository, ref: str, branch: str) -> None:
    """Raises InvalidInput `invalid_argument` if the branch stands before the commit."""
    names = {each.name for each in repository.branches.list()}
    if branch not in names and ref in names:
        raise InvalidInput(
            "invalid_argument",
            f"there is no branch {shown(branch)}: the commit comes first, then the branch, as in: "
            f"ebbtide revert REPO {shlex.join([branch, ref])}",
        )


def reset(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Only this path.", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Only paths that begin with this.", show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            autocompletion=completing.refs,
            help="Move the branch to this commit. Staged changes refuse it, unless --force is "
            "given.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --to: drop the staged changes.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Drop the staged changes of a branch, or move the branch to another commit.

    Dropped changes cannot be restored. Without --to, the branch keeps its commit. After a move, the
    retention policy decides how long the commits stay that no other branch or tag reaches.
    """
    if sum(each is not None for each in (path, prefix, to)) > 1:
        raise InvalidInput("invalid_argument", "give one of --path, --prefix and --to")
    if force and to is None:
        raise InvalidInput("invalid_argument", "--force is for --to: a reset drops changes anyway")
    commits = cli.repository(repository).commits
    if to is not None:
        _reset_to(cli, commits, branch, to, force=force, yes=yes)
    else:
        _reset_staged(cli, commits, branch, path, prefix, yes=yes)


def _reset_staged(
    cli: Cli, commits: Commits, branch: str, path: str | None, prefix: str | None, *, yes: bool
) -> None:
    if not yes:
        where = "" if path is None and prefix is None else f" at {escaped(path or prefix or '')!r}"
        staged = sum(
            1
            for change in commits.diff_staged(branch, prefix=path or prefix or "")
            if path is None or change.path == path
        )
        if not cli.may(f"drop {count_text(staged, 'staged change')} on {branch}{where}?", yes=yes):
            return
    if path is None and prefix is None:
        # The dropped changes are not counted, because there can be millions.
        commits.reset(branch)
        cli.output.answer(
            {"branch": branch},
            lambda: cli.output.line(f"dropped all staged changes on {branch}"),
        )
        return
    if path is not None:
        dropped = commits.reset_path(branch, path)
    else:
        dropped = commits.reset_prefix(branch, prefix or "")
    cli.output.answer(
        {"branch": branch, "dropped_count": dropped},
        lambda: cli.output.line(f"dropped {count_text(dropped, 'staged change')} on {branch}"),
    )


def _reset_to(cli: Cli, commits: Commits, branch: str, to: str, *, force: bool, yes: bool) -> None:
    dropping = ", and drop its staged changes" if force else ""
    target = commits.get(to)
    # The commit is named by its id, so that the answer is about the commit that is moved to.
    if not cli.may(f"move {branch} to commit {short_id(target.commit_id)}{dropping}?", yes=yes):
        return
    _answer(cli, commits.reset_to(branch, target.commit_id, force=force), branch)


def _answer(cli: Cli, made: CommitRecord, branch: str) -> None:
    text = f"{branch} is at commit {short_id(made.commit_id)}: {one_line(made.message)}"
    cli.output.answer(documents.commit(made), lambda: cli.output.line(text))
