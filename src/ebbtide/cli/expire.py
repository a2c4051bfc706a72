"""The command `expire`: cuts old history off an Icechunk repository."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ebbtide.cli import documents
from ebbtide.cli.asking import confirm, require_answerable
from ebbtide.cli.collecting import make_engine
from ebbtide.cli.command import Cli, YesOption, command
from ebbtide.cli.gc import MasterOption
from ebbtide.cli.interrupting import command_line
from ebbtide.cli.parsing import DATE_FORMS, parse_when
from ebbtide.cli.policies import read_policy_file
from ebbtide.cli.runs import LIMIT, show_candidates
from ebbtide.cli.summary import show_block
from ebbtide.errors import InvalidInput
from ebbtide.formats.schemes import ExpiringScheme, scheme_of
from ebbtide.text import count_text, date_text, size_text

if TYPE_CHECKING:
    from ebbtide.formats.capabilities import CommitHistory, WithExpiry
    from ebbtide.gc.preview import Preview
    from ebbtide.model import RefKind
    from ebbtide.retention.expiry import Expiry, ExpiryRequest

SHOWN_MAX: Final = 20
"""The most snapshots that are listed for people; `--json` has all."""


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "expire")(expire)


def _keep_option(help_text: str) -> Any:  # Typer types options as Any
    return typer.Option(metavar="N", min=1, help=help_text, show_default=False)


IcechunkArgument = Annotated[
    str,
    typer.Argument(metavar="REPO", help="icechunk:PATH or icechunk:URL.", show_default=False),
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help=f"Expire snapshots older than a period, such as 30d, or a date: {DATE_FORMS}.",
        show_default=False,
    ),
]
KeepLast = Annotated[int | None, _keep_option("Keep the newest N snapshots of each branch.")]
KeepHourly = Annotated[
    int | None, _keep_option("Keep the newest snapshot of each of the newest N hours.")
]
KeepDaily = Annotated[
    int | None, _keep_option("Keep the newest snapshot of each of the newest N days.")
]
KeepWeekly = Annotated[
    int | None, _keep_option("Keep the newest snapshot of each of the newest N weeks.")
]
KeepMonthly = Annotated[
    int | None, _keep_option("Keep the newest snapshot of each of the newest N months.")
]
KeepYearly = Annotated[
    int | None, _keep_option("Keep the newest snapshot of each of the newest N years.")
]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="JSON file with a policy that has rules for branches; - for stdin.",
        show_default=False,
    ),
]
DeleteExpiredBranches = Annotated[
    bool,
    typer.Option(
        "--delete-expired-branches",
        help="Delete branches whose newest snapshot is older than --older-than, except main.",
    ),
]
DeleteExpiredTags = Annotated[
    bool,
    typer.Option("--delete-expired-tags", help="Delete tags on snapshots older than --older-than."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Only show the changes, and the files that become collectable."),
]
Files = Annotated[
    bool,
    typer.Option("--files", help="With --dry-run: also list the files that become collectable."),
]
FilesLimit = Annotated[int, typer.Option(metavar="N", min=1, help="The most files to list.")]
Unsafe = Annotated[
    bool,
    typer.Option("--unsafe", help="Allow expiring snapshots younger than EBBTIDE_ICECHUNK_GRACE."),
]


def expire(
    cli: Cli,
    repository: IcechunkArgument,
    older_than: OlderThan = None,
    keep_last: KeepLast = None,
    keep_hourly: KeepHourly = None,
    keep_daily: KeepDaily = None,
    keep_weekly: KeepWeekly = None,
    keep_monthly: KeepMonthly = None,
    keep_yearly: KeepYearly = None,
    policy: PolicyFile = None,
    delete_expired_branches: DeleteExpiredBranches = False,
    delete_expired_tags: DeleteExpiredTags = False,
    dry_run: DryRun = False,
    files: Files = False,
    limit: FilesLimit = LIMIT,
    unsafe: Unsafe = False,
    master: MasterOption = None,
    yes: YesOption = False,
) -> None:
    """Cut old snapshots off the history of an Icechunk repository. Deletes no object.

    A snapshot that a branch or tag points at stays, and so does the first snapshot. With --keep
    options or a policy, chosen older snapshots stay reachable. 'gc run' deletes snapshots that are
    no longer reachable, and their files.
    """
    cli.when_interrupted(lambda: "Interrupted before its end: nothing was changed")

    from ebbtide.retention import Policy
    from ebbtide.retention.expiry import ExpiryRequest

    scheme = _scheme_of(repository)
    if not dry_run:
        require_answerable(yes=yes)
    found = scheme.open_expiring(repository, cli.settings)
    now = found.now()
    rule = {
        "keep_last": keep_last,
        "keep_hourly": keep_hourly,
        "keep_daily": keep_daily,
        "keep_weekly": keep_weekly,
        "keep_monthly": keep_monthly,
        "keep_yearly": keep_yearly,
    }
    deleted: dict[RefKind, bool] = {"branch": delete_expired_branches, "tag": delete_expired_tags}
    request = ExpiryRequest.of(
        now=now,
        sessions=scheme.sessions(cli.settings),
        older_than=None if older_than is None else parse_when(older_than, now, before=True),
        rule={name: count for name, count in rule.items() if count is not None} or None,
        policy=None if policy is None else Policy.parse_given(read_policy_file(policy)),
        delete_refs=[kind for kind, wanted in deleted.items() if wanted],
        unsafe=unsafe,
    )
    if dry_run:
        _show_dry_run(cli, repository, found, request, files=limit if files else 0, master=master)
    else:
        _expire(cli, repository, found, request, yes=yes)


def _scheme_of(repository: str) -> ExpiringScheme:
    scheme = scheme_of(repository)
    if not isinstance(scheme, ExpiringScheme):
        raise InvalidInput(
            "invalid_argument",
            f"{repository!r} is not icechunk:PATH or icechunk:URL: for a repository of the store, "
            "use 'ebbtide retention set'",
        )
    return scheme


def _expire(cli: Cli, name: str, found: WithExpiry, request: ExpiryRequest, *, yes: bool) -> None:
    history, expiry = found.plan_expiry(request)
    if not cli.output.as_json:
        _show_expiry(cli, history, expiry, request)
    if expiry.is_empty or not confirm("rewrite the history like this?", yes=yes):
        document = _document(name, history, expiry, done=False)
        cli.output.answer(document, lambda: cli.output.say("nothing was changed"))
        return
    cli.when_interrupted(
        lambda: (
            "Interrupted while the history was rewritten: no object was deleted, and the part "
            "that was not rewritten yet is unchanged"
        )
    )
    cli.progress("expire", "start")
    with cli.progress:
        history, expiry = found.expire(request)
        cli.progress("expire", "end")

    def show() -> None:
        cli.output.line("done; no object was deleted")
        cli.output.line("a run deletes unreachable snapshots after the grace")
        cli.output.line()
        show_block(
            cli,
            [
                ("repository", name),
                ("when", f"{date_text(datetime.now(UTC))} UTC"),
                ("released", count_text(len(expiry.released), "snapshot")),
                ("kept", count_text(len(history.commits) - len(expiry.released), "snapshot")),
                ("rewritten", count_text(len(expiry.new_parents), "snapshot")),
                ("refs deleted", count_text(len(expiry.deleted_refs))),
                ("collect", command_line(cli.context, ("gc", "run"), (name,))),
            ],
        )

    cli.output.answer(_document(name, history, expiry, done=True), show)


def _show_dry_run(
    cli: Cli,
    name: str,
    found: WithExpiry,
    request: ExpiryRequest,
    *,
    files: int,
    master: str | None,
) -> None:
    from ebbtide.gc.preview import Preview

    history, expiry = found.plan_expiry(request)
    freed = (
        Preview({}, [])
        if expiry.is_empty
        else _preview(cli, name, expiry, files=files, master=master)
    )
    document = _document(name, history, expiry, done=False)
    document["collectable"] = {
        "count": freed.total.objects,
        "bytes": freed.total.bytes_total,
        "kinds": {
            kind: {"objects": count.objects, "bytes_total": count.bytes_total}
            for kind, count in freed.kinds.items()
        },
    }
    if files:
        document["files"] = [
            row | {"last_modified": documents.instant(row["last_modified"])} for row in freed.files
        ]

    def show() -> None:
        _show_expiry(cli, history, expiry, request)
        cli.output.line()
        rows = [
            [kind, count_text(count.objects), size_text(count.bytes_total)]
            for kind, count in freed.kinds.items()
        ]
        cli.output.table(
            ["would become collectable", "count", "size"],
            rows,
            right=["count", "size"],
            none="nothing would become collectable",
        )
        if files:
            cli.output.line()
            show_candidates(cli, freed.files)
        cli.output.line()
        cli.output.line("nothing was changed")

    cli.output.answer(document, show)


def _preview(cli: Cli, name: str, expiry: Expiry, *, files: int, master: str | None) -> Preview:
    """Returns the files that an expiry makes collectable, when they are older than the grace."""
    from datetime import timedelta

    from ebbtide.gc.options import RunOptions
    from ebbtide.gc.preview import preview

    settings, scheme = cli.settings, _scheme_of(name)
    progress = cli.progress
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as directory, progress:
        options = RunOptions.of(
            settings,
            sessions=scheme.sessions(settings),
            grace=timedelta(0),
            unsafe=True,
            allow_share=True,
            run_dir=directory,
        )
        before, after = (
            scheme.open_expired(name, settings, run_dir=directory, expiry=each)
            for each in (None, expiry)
        )
        return preview(
            before,
            after,
            engine=make_engine(settings, master, progress),
            options=options,
            files_max=files,
            observer=progress,
        )


def _show_expiry(cli: Cli, history: CommitHistory, expiry: Expiry, request: ExpiryRequest) -> None:
    for warning in expiry.warnings:
        cli.output.warn(warning)
    if expiry.is_empty:
        cli.output.line(f"there is nothing to expire: {_why_nothing(history, request)}")
        return
    released = sorted(
        (history.commits[snapshot_id] for snapshot_id in expiry.released),
        key=lambda commit: commit.created_at,
    )
    cli.output.table(
        ["released", "written"],
        [[commit.commit_id, date_text(commit.created_at)] for commit in released[:SHOWN_MAX]],
        none="no snapshot is released: branches and tags still reach all",
    )
    if len(released) > SHOWN_MAX:
        cli.output.line(f"and {count_text(len(released) - SHOWN_MAX)} more: --json lists all")
    cli.output.line()
    cli.output.line(
        f"{count_text(len(released), 'snapshot')} released, "
        f"{count_text(len(expiry.new_parents), 'snapshot')} with another parent"
    )
    for ref in expiry.deleted_refs:
        cli.output.line(f"{ref.kind} {ref.name} deleted (it points at {ref.commit_id})")


def _why_nothing(history: CommitHistory, request: ExpiryRequest) -> str:
    bound = request.older_than if request.policy is None else request.younger
    older = sum(commit.created_at < bound for commit in history.commits.values())
    if not older:
        snapshots = count_text(len(history.commits), "snapshot")
        return f"none of {snapshots} is older than {date_text(bound)} UTC"
    old = count_text(older, "snapshot is", "snapshots are")
    return f"{old} old enough, but kept by refs or rules, or already unreachable"


def _document(name: str, history: CommitHistory, expiry: Expiry, *, done: bool) -> dict[str, Any]:
    return {
        "repository": name,
        "done": done,
        "warnings": list(expiry.warnings),
        "edited": [
            {
                "snapshot_id": snapshot_id,
                "parent_id": history.commits[snapshot_id].first_parent_id,
                "new_parent_id": parent_id,
            }
            for snapshot_id, parent_id in sorted(expiry.new_parents.items())
        ],
        "released": [
            {
                "snapshot_id": snapshot_id,
                "written_at": documents.instant(history.commits[snapshot_id].created_at),
            }
            for snapshot_id in sorted(expiry.released)
        ],
        "deleted_refs": [
            {"kind": ref.kind, "name": ref.name, "snapshot_id": ref.commit_id}
            for ref in expiry.deleted_refs
        ],
    }
