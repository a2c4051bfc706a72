"""`retention`: what a repository is to keep, and what that means for each branch and commit."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli import documents
from ebbtide.cli.command import Cli, RepositoryArgument, command, group
from ebbtide.cli.figures import refs_table
from ebbtide.cli.text import age_at, count_text, date_text, one_line, parse_pairs, short_id
from ebbtide.documents import read_document
from ebbtide.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ebbtide.model import Commit
    from ebbtide.retention import Policy
    from ebbtide.retention.decision import Decision, Roots
    from ebbtide.store.metadata.commits import CommitRecord
    from ebbtide.store.repository import Repository

app = group("Show and set what a repository keeps.")

LET_GO = "let go"


@command(app, "set")
def set_policy(
    cli: Cli,
    repository: RepositoryArgument,
    default: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Rule for every branch without one.", show_default=False),
    ] = None,
    branch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RULE",
            help="Rule for a branch, or for those that a glob such as 'user-*' matches; "
            "repeatable.",
            show_default=False,
        ),
    ] = None,
    tags: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="Rule for tags; they keep by default.", show_default=False
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="age (the default) or rewrite.", show_default=False),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The policy as JSON instead; - for stdin.", show_default=False
        ),
    ] = None,
) -> None:
    """Set the policy, in place of the one before.

    A RULE is a period with a unit (12h, 20d, 2w), or keep, or parts such as
    keep_within:30d,keep_last:3,keep_monthly:12, of which each keeps what it names.
    Nothing goes before a 'gc run' or 'gc sweep'.
    """
    given = {"default": default, "branches": branch, "tags": tags, "mode": mode}
    written = {key: value for key, value in given.items() if value is not None}
    if file is not None and written:
        raise InvalidInput("invalid_argument", "give --file or rules, not both")
    mapping = read_policy_file(file) if file is not None else _mapping(written)
    from ebbtide.retention import Policy

    policy = Policy.parse(mapping)
    retention = cli.repository(repository).retention
    before = retention.get()
    unmatched = retention.set(policy)
    warnings = [f"the rule for {pattern!r} matches no branch" for pattern in unmatched]
    if before is not None:
        warnings += [
            f"{name} of the policy before is gone: a policy is set as a whole"
            for name in _dropped(before, policy)
        ]
    for warning in warnings:
        cli.output.warn(warning)
    document = {"repository": repository, "policy": policy.to_mapping(), "warnings": warnings}

    def show() -> None:
        _show_policy(cli, policy)
        cli.output.line(f"what it means: ebbtide retention show {repository} --commits")

    cli.output.answer(document, show)


def _dropped(before: Policy, policy: Policy) -> list[str]:
    """Names the rules of the policy before that the new one does not replace."""
    names = []
    if before.default is not None and policy.default is None:
        names.append("the default rule")
    names += [
        f"the rule for {pattern!r}" for pattern in before.branches.keys() - policy.branches.keys()
    ]
    if before.tags is not None and policy.tags is None:
        names.append("the rule for tags")
    if before.mode != policy.mode:
        names.append(f"the mode {before.mode}")
    return sorted(names)


def _mapping(written: Mapping[str, Any]) -> dict[str, Any]:
    """The policy that the options write, in the form that a file has."""
    mapping = {
        key: parse_rule_text(value) if key in ("default", "tags") else value
        for key, value in written.items()
    }
    if "branches" in mapping:
        pairs = parse_pairs(mapping["branches"], option="--branch")
        mapping["branches"] = {name: parse_rule_text(rule) for name, rule in pairs.items()}
    return mapping


def parse_rule_text(text: str) -> str | dict[str, str | int]:
    """A rule as the command line has it, in the form that a policy file has.

    `keep_last:3,keep_within:7d` is a mapping; anything else is handed on for the policy to judge.
    """
    if ":" not in text:
        return text
    parts: dict[str, str | int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition(":")
        if name in parts:
            raise InvalidInput("invalid_policy", f"the rule {text[:80]!r} has {name!r} twice")
        parts[name] = int(value) if value.isascii() and value.isdigit() else value
    return parts


def read_policy_file(file: str) -> object:
    """Returns the document in a policy's file; `-` is stdin. Raises InvalidInput `invalid_policy`
    unless it is JSON in which each key stands once."""
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    return read_document(text, kind="invalid_policy", what="stdin" if file == "-" else file)


@command(app, "unset")
def unset_policy(cli: Cli, repository: RepositoryArgument) -> None:
    """Drop the policy: without one, nothing expires."""
    cli.repository(repository).retention.unset()
    cli.output.answer(
        {"repository": repository, "policy": None},
        lambda: cli.output.line(f"{repository} has no policy any more: everything is kept"),
    )


@command(app, "show")
def show_policy(
    cli: Cli,
    repository: RepositoryArgument,
    commits: Annotated[
        bool, typer.Option("--commits", help="List every commit, with the reason why it is kept.")
    ] = False,
) -> None:
    """Show the policy, and what it keeps and lets go of each branch now."""
    from ebbtide.retention.decision import decide

    found = cli.repository(repository)
    policy = found.retention.get()
    with cli.collected(repository).reading() as reading:
        roots = reading.roots()
    decision = decide(roots)
    document = _document(repository, policy, roots, decision, with_commits=commits)

    def show() -> None:
        _show_policy(cli, policy)
        cli.output.line()
        refs_table(cli.output, document["by_ref"])
        for warning in decision.warnings:
            cli.output.warn(warning)
        if commits:
            cli.output.line()
            _show_commits(cli, roots, decision, _records(found, roots))

    cli.output.answer(document, show)


def _records(repository: Repository, roots: Roots) -> Mapping[str, CommitRecord]:
    """The records of all commits, for their messages; read together, for there may be many."""
    from ebbtide.store.metadata.commits import find_commits

    context = repository.context
    with context.metadata.snapshot() as tx:
        commit_ids = [commit.commit_id for commit in roots.commits]
        return find_commits(tx, context.repository_id, commit_ids)


def _show_policy(cli: Cli, policy: Policy | None) -> None:
    if policy is None:
        cli.output.line("no policy: everything is kept")
        return
    cli.output.table(["branches", "rule"], rules_of(policy))
    if policy.mode != "age":
        cli.output.line(f"mode {policy.mode}")


def rules_of(policy: Policy) -> list[tuple[str, str]]:
    """Which branches a rule is for, and the rule."""
    default = "keep" if policy.default is None else policy.default.describe()
    rows = [("default", default)]
    rows += [(pattern, policy.branches[pattern].describe()) for pattern in sorted(policy.branches)]
    return [*rows, ("(tags)", "keep" if policy.tags is None else policy.tags.describe())]


def _document(
    repository: str,
    policy: Policy | None,
    roots: Roots,
    decision: Decision,
    *,
    with_commits: bool,
) -> dict[str, Any]:
    from dataclasses import asdict

    document: dict[str, Any] = {
        "repository": repository,
        "policy": None if policy is None else policy.to_mapping(),
        "now": documents.instant(roots.now),
        "active_count": len(decision.active),
        "expired_count": len(decision.expired),
        "by_ref": [asdict(summary) for summary in decision.by_ref],
        "warnings": list(decision.warnings),
    }
    if with_commits:
        document["commits"] = [
            {
                "commit_id": commit.commit_id,
                "created_at": documents.instant(commit.created_at),
                "kept": commit.commit_id in decision.active,
                "reason": decision.active.get(commit.commit_id),
                "tombstoned": commit.tombstoned,
            }
            for commit in _youngest_first(roots)
        ]
    return document


def _youngest_first(roots: Roots) -> list[Commit]:
    return sorted(roots.commits, key=lambda commit: commit.created_at, reverse=True)


def _show_commits(
    cli: Cli, roots: Roots, decision: Decision, records: Mapping[str, CommitRecord]
) -> None:
    now = datetime.now(UTC)
    rows = []
    for commit in _youngest_first(roots):
        reason = decision.active.get(commit.commit_id)
        rows.append(
            [
                short_id(commit.commit_id),
                date_text(commit.created_at),
                age_at(commit.created_at, now),
                "kept" if reason is not None else "gone" if commit.tombstoned else LET_GO,
                reason or "",
                one_line(records[commit.commit_id].message),
            ]
        )
    cli.output.table(["commit", "created", "age", "fate", "reason", "message"], rows, right=["age"])
    cli.output.line()
    cli.output.line(
        f"{count_text(len(decision.active), 'commit')} kept, "
        f"{count_text(len(decision.expired))} let go"
    )
