"""The commands `retention` and `hold`: the policy, its decision for each commit, and exceptions.

A new policy is compared with the policy in force by its effect on commits. Files are counted by
`ebbtide what-if`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli import values
from ebbtide.cli.command import Cli, RefArgument, WithPolicyArgument, command, group
from ebbtide.cli.commits import commit_state
from ebbtide.cli.figures import refs_table
from ebbtide.cli.values import parse_pairs, text_of
from ebbtide.documents import document_of, instant
from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.schemes import is_elsewhere, scheme_of
from ebbtide.gc import commits_text
from ebbtide.text import (
    age_at,
    count_text,
    date_text,
    escaped,
    one_line,
    short_id,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ebbtide.cli.output import Output
    from ebbtide.formats.capabilities import WithPolicy
    from ebbtide.model import Commit
    from ebbtide.quarantined import Fate
    from ebbtide.retention import Policy
    from ebbtide.retention.decision import Decision, Roots
    from ebbtide.retention.policy import Rule
    from ebbtide.store.database.commit_rows import CommitRecord
    from ebbtide.store.repository import Repository

app = group("Show and set the retention policy of a repository.")
OTHERS = (
    "the policy was changed by somebody else at the same time: both changes are in it, and the "
    "effect is that of this change alone"
)
DefaultRule = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="Rule for branches without a rule of their own.",
    ),
]
BranchRules = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=RULE",
        help="Rule for a branch, or for all branches that a glob such as 'user-*' matches; "
        "repeatable.",
    ),
]
TagsRule = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="Rule for tags. Without it, all tags keep their commits.",
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(metavar="MODE", help="age (the default) or rewrite."),
]
RULE = re.compile(r"keep|keep_\w+:.*|[0-9]+[a-zA-Z]\w*")
POLICY_FORMS = "a rule such as 30d or keep_last:3, JSON, or a file with either; - for stdin."
PolicyArgument = Annotated[
    str | None,
    typer.Argument(metavar="POLICY", help=f"The policy: {POLICY_FORMS}", show_default=False),
]
PolicyFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="A file with the POLICY; - for stdin.")
]
RuleArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RULE",
        help="The rule: a period such as 30d, or keep, or parts such as keep_last:3.",
    ),
]
UnsetOption = Annotated[bool, typer.Option("--unset", help="Remove the rule instead.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show which commits would expire. Changes nothing.")
]
hold_app = group("Keep commits regardless of the policy.")


@dataclass(frozen=True, slots=True)
class BranchEffect:
    """The number of commits that one branch keeps, under the policy in force and another one."""

    kind: str
    name: str
    kept_before: int
    kept_after: int


@dataclass(frozen=True, slots=True)
class PolicyEffect:
    """Counts of commits whose fate another policy changes. Commits whose data is gone already are
    left out.

    `newly_expired` are kept by the policy in force, and not by the other one. `newly_kept` are the
    opposite. `branches` has the branches whose counts differ.
    """

    newly_expired: int
    newly_kept: int
    branches: tuple[BranchEffect, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the effect in JSON."""
        return {
            "newly_expired_count": self.newly_expired,
            "newly_kept_count": self.newly_kept,
            "by_ref": [
                {
                    "kind": each.kind,
                    "name": each.name,
                    "kept_before_count": each.kept_before,
                    "kept_after_count": each.kept_after,
                }
                for each in self.branches
            ],
        }


def effect_of(found: WithPolicy, policy: Policy) -> PolicyEffect | None:
    """Returns the effect of a policy that is not set yet. None if the history is damaged, so that
    nothing can be decided about it. Raises Failed."""
    present: Policy | None = None
    # A repository of lakeFS without rules cannot be collected: it keeps everything.
    with suppress(Refused):
        present = found.policy()
    try:
        roots = found.roots(policy)
        before, after = _decided(roots, present), _decided(roots, policy)
    except Refused:
        return None
    intact = {commit.commit_id for commit in roots.commits if not commit.tombstoned}
    return PolicyEffect(
        newly_expired=len((after.expired - before.expired) & intact),
        newly_kept=len((before.expired - after.expired) & intact),
        branches=_branches(before, after),
    )


def _decided(roots: Roots, policy: Policy | None) -> Decision:
    from ebbtide.retention.decision import decide

    held = None if policy is None else policy.with_holds(roots.holds)
    return decide(replace(roots, policy=held))


def _branches(before: Decision, after: Decision) -> tuple[BranchEffect, ...]:
    kept = {(each.kind, each.name): each.kept_count for each in before.by_ref}
    found = [
        BranchEffect(
            each.kind,
            each.name,
            kept_before=kept.get((each.kind, each.name), each.commit_count),
            kept_after=each.kept_count,
        )
        for each in after.by_ref
    ]
    return tuple(each for each in found if each.kept_before != each.kept_after)


def show_effect(output: Output, effect: PolicyEffect | None) -> None:
    """Prints the effect of a policy."""
    if effect is None:
        output.warn("the history is damaged: the effect on commits is unknown")
        return
    if not effect.newly_expired and not effect.newly_kept:
        output.line("compared with the former policy, no commit expires or is kept in addition")
        return
    output.line(
        "compared with the former policy, "
        f"{count_text(effect.newly_expired, 'more commit expires', 'more commits expire')} next, "
        f"and {count_text(effect.newly_kept, 'more is', 'more are')} kept"
    )
    output.table(
        ["branch", "kept before", "kept after"],
        [
            [each.name, count_text(each.kept_before), count_text(each.kept_after)]
            for each in effect.branches
        ],
        right=["kept before", "kept after"],
        none="no branch keeps another number of commits",
    )


@command(app, "set")
def set_policy(
    cli: Cli,
    repository: WithPolicyArgument,
    policy: PolicyArgument = None,
    *,
    default: DefaultRule = None,
    branch: BranchRules = None,
    tags: TagsRule = None,
    mode: ModeOption = None,
    file: PolicyFile = None,
    dry_run: DryRunOption = False,
) -> None:
    """Set the policy. It replaces the present policy as a whole, and says which commits expire.

    A POLICY is a RULE for all branches, or JSON, or a file with either. A RULE is a period with a
    unit (12h, 20d, 2w), or keep, or parts such as keep_within:30d,keep_last:3,keep_monthly:12.
    Each part keeps the commits that it names.
    Nothing is deleted before a 'gc run' or 'gc sweep'. 'retention default' and 'retention branch'
    change one rule.
    """
    given = {"default": default, "branches": branch, "tags": tags, "mode": mode}
    written = {key: value for key, value in given.items() if value is not None}
    if (policy is not None) + (file is not None) + bool(written) > 1:
        raise InvalidInput("invalid_argument", "give a POLICY, --file or rules, not several")
    from ebbtide.retention import Policy

    if file is not None:
        parsed = _read_file(file)
    else:
        parsed = Policy.parse_given(_mapping(written)) if policy is None else read_policy(policy)
    found = cli.with_policy(repository)
    before = found.written_policy()
    dropped = [] if before is None else _dropped(before, parsed)
    warnings = [
        f"{name} of the previous policy is dropped: a policy is set as a whole" for name in dropped
    ]
    _change(cli, repository, found, lambda _before: parsed, warnings, dry_run=dry_run)


@command(app, "default")
def set_default(
    cli: Cli,
    repository: WithPolicyArgument,
    rule: RuleArgument = None,
    unset: UnsetOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Set the rule for branches without a rule of their own. The other rules stay as they are.

    'ebbtide retention set --help' describes rules.
    """
    parsed = _one_rule(rule, unset=unset)

    def change(before: Policy) -> Policy:
        return replace(before, default=parsed)

    _change(cli, repository, cli.with_policy(repository), change, [], dry_run=dry_run)


@command(app, "branch")
def set_branch(
    cli: Cli,
    repository: WithPolicyArgument,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of a branch, or a glob for several, such as 'user-*'.",
            autocompletion=values.branches,
        ),
    ],
    rule: RuleArgument = None,
    unset: UnsetOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Set the rule for a branch, or for all branches that a glob matches. The other rules stay.

    'ebbtide retention set --help' describes rules.
    """
    parsed = _one_rule(rule, unset=unset)

    def change(before: Policy) -> Policy:
        rules = {pattern: each for pattern, each in before.branches.items() if pattern != name}
        if parsed is not None:
            rules[name] = parsed
        elif name not in before.branches:
            what = f"the policy has no rule for {shown(name)} to remove"
            raise NotFound("policy_not_found", what)
        return replace(before, branches=rules)

    _change(cli, repository, cli.with_policy(repository), change, [], dry_run=dry_run)


def _one_rule(text: str | None, *, unset: bool) -> Rule | None:
    """Returns the rule of the arguments, or None to remove it. Raises InvalidInput
    `invalid_argument`, `invalid_policy` or `invalid_duration`."""
    if (text is None) != unset:
        raise InvalidInput("invalid_argument", "give either a RULE or --unset")
    if text is None:
        return None
    from ebbtide.retention.policy import Policy, parse_rule_text

    return Policy.parse_given({"default": parse_rule_text(text)}).default


def _change(
    cli: Cli,
    repository: str,
    found: WithPolicy,
    change: Callable[[Policy], Policy],
    warnings: list[str],
    *,
    dry_run: bool,
) -> None:
    """Sets the policy that `change` makes of the present one, and answers with its effect on
    commits. With `dry_run`, only answers."""
    from ebbtide.retention import Policy

    def changed(before: Policy) -> Policy:
        # A policy without any rule is refused. It would be the same as none.
        return Policy.parse(change(before).to_mapping())

    before = found.written_policy()
    is_first = before is None
    expected = policy = changed(before or Policy())
    effect = effect_of(found, policy)
    if not dry_run:
        policy, unmatched = found.change_policy(changed)
        warnings = [f"the rule for {each!r} matches no branch" for each in unmatched] + warnings
    if policy != expected:
        warnings = [*warnings, OTHERS]
    rules = _rules_of_its_own(repository)
    if is_first and rules is not None:
        warnings = [*warnings, f"{rules} do not apply to runs of Ebbtide any more"]
    for warning in warnings:
        cli.output.warn(warning)
    document = {
        "repository": repository,
        "done": not dry_run,
        "policy": policy.to_mapping(),
        "effect": None if effect is None else effect.to_json(),
        "warnings": warnings,
    }

    def show() -> None:
        cli.output.line(f"policy: {policy.describe()}")
        cli.output.line()
        show_effect(cli.output, effect)
        if dry_run:
            cli.output.line("nothing was changed")
        else:
            cli.output.line(f"to see its effect: ebbtide retention show {repository} --commits")

    cli.output.answer(document, show)


def _dropped(before: Policy, policy: Policy) -> list[str]:
    """Returns the rules of the former policy that the new one does not replace."""
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
    names += [f"the hold on commit {shown(each)}" for each in before.holds.keys() - policy.holds]
    return sorted(names)


def _mapping(written: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the policy of the options, in the form of a policy file."""
    from ebbtide.retention.policy import parse_rule_text

    mapping = {
        key: parse_rule_text(value) if key in ("default", "tags") else value
        for key, value in written.items()
    }
    if "branches" in mapping:
        pairs = parse_pairs(mapping["branches"], option="--branch")
        mapping["branches"] = {name: parse_rule_text(rule) for name, rule in pairs.items()}
    return mapping


def is_policy_text(text: str) -> bool:
    """Whether a text is a policy itself, right or wrong, and not the name of a file."""
    return text.lstrip().startswith("{") or RULE.fullmatch(text.strip()) is not None


def read_policy(given: str) -> Policy:
    """Returns the policy of an argument: a rule, JSON, or the name of a file that has one of the
    two; `-` is stdin. Raises InvalidInput `invalid_argument`, `invalid_policy` or
    `invalid_duration`."""
    from ebbtide.retention import Policy

    if is_policy_text(given):
        return Policy.parse_text(given, what=shown(given))
    try:
        return _read_file(given)
    except FileNotFoundError:
        raise InvalidInput(
            "invalid_argument",
            f"{shown(given)} is no file, no JSON, and no rule such as 30d or keep_last:3",
        ) from None


def _read_file(file: str) -> Policy:
    """Returns the policy in a file; `-` is stdin. Raises as `read_policy` does, but
    FileNotFoundError for no file."""
    from ebbtide.retention import Policy

    return Policy.parse_text(text_of(file), what="stdin" if file == "-" else file)


def _rules_of_its_own(repository: str) -> str | None:
    scheme = scheme_of(repository)
    return None if scheme is None else scheme.rules_of_its_own


@command(app, "unset")
def unset_policy(cli: Cli, repository: WithPolicyArgument) -> None:
    """Remove the policy. Without a policy, nothing expires. For a lakeFS repository, lakeFS's own
    rules apply again."""
    cli.with_policy(repository).set_policy(None)
    rules = _rules_of_its_own(repository)
    rest = "everything is kept" if rules is None else f"{rules} apply"
    cli.output.answer(
        {"repository": repository, "policy": None},
        lambda: cli.output.line(f"{repository} has no policy any more: {rest}"),
    )


@command(app, "show")
def show_policy(
    cli: Cli,
    repository: WithPolicyArgument,
    commits: Annotated[
        bool, typer.Option("--commits", help="List every commit, with the reason why it is kept.")
    ] = False,
) -> None:
    """Show the policy, and how many commits of each branch are kept, and expire next.

    For a lakeFS repository without a policy of Ebbtide, these are lakeFS's own rules.
    """
    from ebbtide.retention.decision import decide

    found = cli.with_policy(repository)
    policy = found.policy()
    roots = found.roots(policy)
    records: Mapping[str, CommitRecord] = {}
    fates: Mapping[str, Fate] = {}
    if commits and not is_elsewhere(repository):
        opened = cli.repository(repository)
        records = _records(opened, roots)
        fates = opened.fates({each.closed_by for each in records.values() if each.closed_by})
    decision = decide(roots)
    document = _document(repository, policy, roots, decision, with_commits=commits)

    def show() -> None:
        rules = "none, everything is kept" if policy is None else policy.describe()
        cli.output.line(f"policy: {rules}")
        cli.output.line()
        refs_table(cli.output, document["by_ref"])
        for warning in decision.warnings:
            cli.output.warn(warning)
        if commits:
            cli.output.line()
            _show_commits(cli, roots, decision, records, fates)
        cli.output.line()
        history = [each for each in roots.commits if not each.is_content]
        kept = sum(each.commit_id in decision.active for each in history)
        gone = sum(each.tombstoned for each in history)
        cli.output.line(commits_text(kept, len(history) - kept - gone, gone))

    cli.output.answer(document, show)


def _records(repository: Repository, roots: Roots) -> Mapping[str, CommitRecord]:
    """Returns the records of all commits, by id. They are read together: there can be many."""
    from ebbtide.store.database.commit_rows import find_commits

    context = repository.context
    with context.metadata.snapshot() as tx:
        commit_ids = [commit.commit_id for commit in roots.commits]
        return find_commits(tx, context.repository_id, commit_ids)


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
        "now": instant(roots.now),
        "active_count": len(decision.active),
        "expired_count": len(decision.expired) - sum(each.tombstoned for each in roots.commits),
        "by_ref": [asdict(summary) for summary in decision.by_ref],
        "warnings": list(decision.warnings),
    }
    if with_commits:
        document["commits"] = [
            {
                "commit_id": commit.commit_id,
                "created_at": instant(commit.created_at),
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
    cli: Cli,
    roots: Roots,
    decision: Decision,
    records: Mapping[str, CommitRecord],
    fates: Mapping[str, Fate],
) -> None:
    now = datetime.now(UTC)
    rows = []
    for commit in _youngest_first(roots):
        if commit.is_content:  # as on pages: no policy changes the contents of collections
            continue
        reason, record = decision.active.get(commit.commit_id), records.get(commit.commit_id)
        is_lost = commit.tombstoned and record is None
        state = "gone" if is_lost else commit_state(commit.commit_id, decision, record, fates)
        rows.append(
            [
                short_id(commit.commit_id),
                date_text(commit.created_at),
                age_at(commit.created_at, now),
                state,
                reason or "",
                "" if record is None else one_line(record.message),
            ]
        )
    headers = ["commit", "created", "age", "state", "reason", "message"]
    cli.output.table(headers, rows, right=["age"])


@command(hold_app, "add")
def add_hold(
    cli: Cli,
    repository: WithPolicyArgument,
    ref: RefArgument,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason, which 'hold list' shows.")
    ] = "",
) -> None:
    """Hold the commit that a ref points at now. If the ref moves, the hold stays."""
    made = cli.with_holds(repository).hold(ref, reason)
    commit = _id_shown(repository, made.commit_id)
    cli.output.answer(
        document_of(made),
        lambda: cli.output.line(
            f"commit {commit} is held until 'ebbtide hold remove {repository} {commit}'"
        ),
    )


@command(hold_app, "list")
def list_holds(cli: Cli, repository: WithPolicyArgument) -> None:
    """List the holds."""
    found = cli.with_holds(repository).holds()

    def show() -> None:
        cli.output.table(
            ["commit", "since", "reason"],
            [
                [
                    _id_shown(repository, hold.commit_id),
                    date_text(hold.created_at),
                    one_line(hold.reason),
                ]
                for hold in found
            ],
            none="no holds",
        )

    cli.output.answer({"holds": [document_of(hold) for hold in found]}, show)


@command(hold_app, "remove")
def remove_hold(cli: Cli, repository: WithPolicyArgument, ref: RefArgument) -> None:
    """Release the hold on a commit. Then the policy decides about the commit again."""
    commit_id = cli.with_holds(repository).release(ref)
    commit = _id_shown(repository, commit_id)
    cli.output.answer(
        {"commit_id": commit_id, "held": False},
        lambda: cli.output.line(f"commit {commit} is not held any more"),
    )


def _id_shown(repository: str, commit_id: str) -> str:
    """Returns the id as the commands take it: only the store knows ids by their first digits."""
    return escaped(commit_id) if is_elsewhere(repository) else short_id(commit_id)
