"""The commands `branch` and `tag`: names for commits. Both have the same commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli import values
from ebbtide.cli.command import (
    BranchArgument,
    Cli,
    RefArgument,
    RepositoryArgument,
    YesOption,
    command,
    group,
)
from ebbtide.cli.lifecycle import (
    AtOption,
    ExpiredOption,
    ExpiresAtOption,
    ExpiresInOption,
    InOption,
    NeverOption,
    UniqueOption,
    deleted_text,
    expiry_changed,
    expiry_given,
    expiry_text,
    may_delete,
)
from ebbtide.documents import document_of
from ebbtide.text import age_text, date_text, short_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbtide.store.refs.protection import ProtectionRules
    from ebbtide.store.refs.refs import NamedCommit, Refs
    from ebbtide.store.repository import Repository

branch_app = group("Make, list, protect, delete and restore branches.")
tag_app = group("Make, list, delete and restore tags.")

CREATE_OPTIONS = "--expires-in and --expires-at"
NAMES_SHOWN_MAX = 5

TagArgument = Annotated[
    str,
    typer.Argument(
        metavar="TAG",
        help="Name of the tag.",
        autocompletion=values.tags,
    ),
]
OldBranchArgument = Annotated[
    str,
    typer.Argument(
        metavar="BRANCH",
        help="Name or id of the branch.",
        autocompletion=values.branches,
    ),
]
PatternArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN",
        help="Name of a branch, or a glob for several, such as 'release/*'.",
        autocompletion=values.branches,
    ),
]
OldTagArgument = Annotated[
    str,
    typer.Argument(
        metavar="TAG",
        help="Name or id of the tag.",
        autocompletion=values.tags,
    ),
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
            autocompletion=values.refs,
            help="Branch, tag or commit to begin at. Default: the default branch.",
        ),
    ] = None,
    expires_in: ExpiresInOption = None,
    expires_at: ExpiresAtOption = None,
) -> None:
    """Make a branch. Staged changes of the source are not copied."""
    found = cli.repository(repository)
    made = found.branches.create(
        branch,
        source or found.info.default_branch,
        expires_at=expiry_given(cli, expires_in, expires_at, options=CREATE_OPTIONS),
    )
    _answer_made(cli, "branch", made)


@command(branch_app, "list")
def list_branches(
    cli: Cli, repository: RepositoryArgument, include_expired: ExpiredOption = False
) -> None:
    """List the branches."""
    _list(cli, "branches", cli.repository(repository).branches, include_expired=include_expired)


@command(branch_app, "expire")
def expire_branch(
    cli: Cli,
    repository: RepositoryArgument,
    branch: OldBranchArgument,
    period: InOption = None,
    date: AtOption = None,
    never: NeverOption = False,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Set when a branch goes to the trash by itself.

    If the branch is in the trash, this restores it.
    """
    expires_at = expiry_changed(cli, period, date, never=never)
    changed = cli.repository(repository).branches.set_expiry(
        branch, expires_at, ensure_unique_name=ensure_unique_name
    )
    _answer(cli, changed, f"branch {changed.name} {expiry_text(changed.expires_at)}")


@command(branch_app, "delete")
def delete_branch(
    cli: Cli, repository: RepositoryArgument, branch: OldBranchArgument, yes: YesOption = False
) -> None:
    """Move a branch to the trash.

    It can be restored until the trash time is over. The command asks only if the trash time is
    zero, because then nothing could restore the branch.
    """
    _delete(cli, repository, cli.repository(repository).branches, branch, yes=yes)


@command(branch_app, "restore")
def restore_branch(
    cli: Cli,
    repository: RepositoryArgument,
    branch: OldBranchArgument,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Restore a branch from the trash, with its staged changes.

    If several branches in the trash have its name, use its id. 'branch list --include-expired'
    shows ids.
    """
    _restore(cli, cli.repository(repository).branches, branch, unique=ensure_unique_name)


@command(branch_app, "protect")
def protect_branches(cli: Cli, repository: RepositoryArgument, pattern: PatternArgument) -> None:
    """Protect branches: they take no direct changes, only merges.

    Writes, commits and resets are refused. Merges and reverts are allowed.
    """
    found = cli.repository(repository)
    _answer_rules(cli, found, found.protection.add(pattern))


@command(branch_app, "unprotect")
def unprotect_branches(cli: Cli, repository: RepositoryArgument, pattern: PatternArgument) -> None:
    """Remove a rule for protected branches.

    PATTERN is the whole rule, as 'branch protected' lists it.
    """
    found = cli.repository(repository)
    _answer_rules(cli, found, found.protection.remove(pattern))


@command(branch_app, "protected")
def list_protected(cli: Cli, repository: RepositoryArgument) -> None:
    """List the rules for protected branches, with the branches that each protects now."""
    found = cli.repository(repository)
    _answer_rules(cli, found, found.protection.get())


@command(tag_app, "create")
def create_tag(
    cli: Cli,
    repository: RepositoryArgument,
    tag: TagArgument,
    ref: RefArgument,
    expires_in: ExpiresInOption = None,
    expires_at: ExpiresAtOption = None,
) -> None:
    """Make a tag: a name that stays on its commit."""
    expires = expiry_given(cli, expires_in, expires_at, options=CREATE_OPTIONS)
    _answer_made(cli, "tag", cli.repository(repository).tags.create(tag, ref, expires_at=expires))


@command(tag_app, "list")
def list_tags(
    cli: Cli, repository: RepositoryArgument, include_expired: ExpiredOption = False
) -> None:
    """List the tags."""
    _list(cli, "tags", cli.repository(repository).tags, include_expired=include_expired)


@command(tag_app, "expire")
def expire_tag(
    cli: Cli,
    repository: RepositoryArgument,
    tag: OldTagArgument,
    period: InOption = None,
    date: AtOption = None,
    never: NeverOption = False,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Set when a tag goes to the trash by itself.

    If the tag is in the trash, this restores it.
    """
    expires_at = expiry_changed(cli, period, date, never=never)
    changed = cli.repository(repository).tags.set_expiry(
        tag, expires_at, ensure_unique_name=ensure_unique_name
    )
    _answer(cli, changed, f"tag {changed.name} {expiry_text(changed.expires_at)}")


@command(tag_app, "delete")
def delete_tag(
    cli: Cli, repository: RepositoryArgument, tag: OldTagArgument, yes: YesOption = False
) -> None:
    """Move a tag to the trash.

    It can be restored until the trash time is over. The command asks only if the trash time is
    zero, because then nothing could restore the tag.
    """
    _delete(cli, repository, cli.repository(repository).tags, tag, yes=yes)


@command(tag_app, "restore")
def restore_tag(
    cli: Cli,
    repository: RepositoryArgument,
    tag: OldTagArgument,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Restore a tag from the trash.

    If several tags in the trash have its name, use its id. 'tag list --include-expired' shows ids.
    """
    _restore(cli, cli.repository(repository).tags, tag, unique=ensure_unique_name)


def _answer_rules(cli: Cli, found: Repository, rules: ProtectionRules) -> None:
    names = [branch.name for branch in found.branches.list()]
    protected = {
        pattern: [name for name in names if rules.matches(pattern, name)]
        for pattern in rules.patterns
    }
    document = [{"pattern": each, "branches": protected[each]} for each in protected]

    def show() -> None:
        cli.output.table(
            ["pattern", "branches"],
            [[pattern, _names_text(names)] for pattern, names in protected.items()],
            none="no branch is protected",
        )

    cli.output.answer({"rules": document}, show)


def _names_text(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    listed = ", ".join(names[:NAMES_SHOWN_MAX]) or "none"
    return f"{listed} and {more:,} more" if more > 0 else listed


def _delete(cli: Cli, repository: str, refs: Refs[Any, Any], ref: str, *, yes: bool) -> None:
    if may_delete(cli, f"{refs.kind} {ref}", yes=yes):
        deleted = refs.delete(ref)
        restore = f"{refs.kind} restore {repository} {deleted.name}"
        _answer(cli, deleted, deleted_text(cli, f"{refs.kind} {deleted.name}", restore))


def _restore(cli: Cli, refs: Refs[Any, Any], ref: str, *, unique: bool) -> None:
    restored = refs.restore(ref, ensure_unique_name=unique)
    text = f"{refs.kind} {restored.name} is restored on {short_id(restored.commit_id)}"
    _answer(cli, restored, text)


def _answer_made(cli: Cli, kind: str, made: NamedCommit) -> None:
    text = f"{kind} {made.name} made on commit {short_id(made.commit_id)}"
    if made.expires_at is not None:
        text += f"; it {expiry_text(made.expires_at)}"
    _answer(cli, made, text)


def _answer(cli: Cli, found: NamedCommit, text: str) -> None:
    cli.output.answer(document_of(found), lambda: cli.output.line(text))


def _list(cli: Cli, plural: str, refs: Refs[Any, Any], *, include_expired: bool) -> None:
    found: Sequence[NamedCommit] = refs.list(include_expired=include_expired)

    def show() -> None:
        now = datetime.now(UTC)
        ids = ["id"] if include_expired else []
        cli.output.table(
            ["name", "commit", "created", "age", "state", "expires", *ids],
            [
                [
                    ref.name,
                    short_id(ref.commit_id),
                    date_text(ref.created_at),
                    age_text(now - ref.created_at),
                    ref.state.value,
                    date_text(ref.expires_at),
                    *([ref.ref_id] if include_expired else []),
                ]
                for ref in found
            ],
            right=["age"],
            none=f"no {plural}",
        )

    cli.output.answer({plural: [document_of(ref) for ref in found]}, show)
