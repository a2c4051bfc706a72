"""`branch` and `tag`: names for commits. Both have the same commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import documents
from ebbtide.cli.command import (
    BranchArgument,
    Cli,
    RefArgument,
    RepositoryArgument,
    YesOption,
    command,
    group,
)
from ebbtide.cli.text import age_text, date_text, short_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbtide.store.branches import Branch
    from ebbtide.store.tags import Tag

branch_app = group("Make, list, delete and restore branches.")
tag_app = group("Make, list, delete and restore tags.")

TagArgument = Annotated[
    str, typer.Argument(metavar="TAG", help="Name of the tag.", show_default=False)
]
ExpiredOption = Annotated[
    bool, typer.Option("--include-expired", help="Show those in the trash too.")
]


@command(branch_app, "create")
def create_branch(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Where it begins: a branch, tag or commit; without it, the default branch.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a branch. Nothing staged on the source comes along."""
    found = cli.repository(repository)
    made = found.branches.create(branch, source or found.info.default_branch)
    _answer(cli, made, f"branch {made.name} made on commit {short_id(made.commit_id)}")


@command(branch_app, "list")
def list_branches(
    cli: Cli, repository: RepositoryArgument, include_expired: ExpiredOption = False
) -> None:
    """List the branches."""
    found = cli.repository(repository).branches.list(include_expired=include_expired)
    _list(cli, "branches", found)


@command(branch_app, "delete")
def delete_branch(
    cli: Cli, repository: RepositoryArgument, branch: BranchArgument, yes: YesOption = False
) -> None:
    """Put a branch in the trash, from which it can be restored for the trash time.

    Asks only where the trash time is zero, so that nothing could bring the branch back.
    """
    found = cli.repository(repository)
    if _may_delete(cli, f"branch {branch}", yes=yes):
        _answer_deleted(cli, "branch", repository, found.branches.delete(branch))


@command(branch_app, "restore")
def restore_branch(cli: Cli, repository: RepositoryArgument, branch: BranchArgument) -> None:
    """Bring a deleted branch back, with all that was staged on it."""
    restored = cli.repository(repository).branches.restore(branch)
    _answer(cli, restored, f"branch {restored.name} is back on {short_id(restored.commit_id)}")


@command(tag_app, "create")
def create_tag(
    cli: Cli, repository: RepositoryArgument, tag: TagArgument, ref: RefArgument
) -> None:
    """Give a commit a name that stays on it."""
    made = cli.repository(repository).tags.create(tag, ref)
    _answer(cli, made, f"tag {made.name} made on commit {short_id(made.commit_id)}")


@command(tag_app, "list")
def list_tags(
    cli: Cli, repository: RepositoryArgument, include_expired: ExpiredOption = False
) -> None:
    """List the tags."""
    found = cli.repository(repository).tags.list(include_expired=include_expired)
    _list(cli, "tags", found)


@command(tag_app, "delete")
def delete_tag(
    cli: Cli, repository: RepositoryArgument, tag: TagArgument, yes: YesOption = False
) -> None:
    """Put a tag in the trash, from which it can be restored for the trash time.

    Asks only where the trash time is zero, so that nothing could bring the tag back.
    """
    found = cli.repository(repository)
    if _may_delete(cli, f"tag {tag}", yes=yes):
        _answer_deleted(cli, "tag", repository, found.tags.delete(tag))


@command(tag_app, "restore")
def restore_tag(cli: Cli, repository: RepositoryArgument, tag: TagArgument) -> None:
    """Bring a deleted tag back."""
    restored = cli.repository(repository).tags.restore(tag)
    _answer(cli, restored, f"tag {restored.name} is back on {short_id(restored.commit_id)}")


def _may_delete(cli: Cli, what: str, *, yes: bool) -> bool:
    if cli.store.settings.trash_time:
        return True
    return cli.may(f"the trash time is zero: delete {what} for good?", yes=yes)


def _answer(cli: Cli, found: Branch | Tag, text: str) -> None:
    cli.output.answer(documents.ref(found), lambda: cli.output.line(text))


def _answer_deleted(cli: Cli, kind: str, repository: str, deleted: Branch | Tag) -> None:
    trash_time = cli.store.settings.trash_time
    text = f"{kind} {deleted.name} deleted"
    if trash_time:
        text += (
            f"; for {age_text(trash_time)} "
            f"'ebbtide {kind} restore {repository} {deleted.name}' brings it back"
        )
    _answer(cli, deleted, text)


def _list(cli: Cli, plural: str, found: Sequence[Branch] | Sequence[Tag]) -> None:
    def show() -> None:
        now = datetime.now(UTC)
        cli.output.table(
            ["name", "commit", "created", "age", "state", "expires"],
            [
                [
                    ref.name,
                    short_id(ref.commit_id),
                    date_text(ref.created_at),
                    age_text(now - ref.created_at),
                    ref.state.value,
                    date_text(ref.expires_at),
                ]
                for ref in found
            ],
            right=["age"],
            none=f"no {plural}",
        )

    cli.output.answer({plural: [documents.ref(ref) for ref in found]}, show)
