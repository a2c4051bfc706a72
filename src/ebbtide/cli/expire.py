"""The command `expire`: cuts old history off Icechunk repositories and Iceberg tables."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, Unpack, cast

import typer

from ebbtide.cli.collectors import make_engine
from ebbtide.cli.command import Cli, YesOption, command, command_line
from ebbtide.cli.figures import made_by, show_block
from ebbtide.cli.gc import MasterOption
from ebbtide.cli.output import confirm, require_answerable
from ebbtide.cli.policies import POLICY_FORMS, read_policy
from ebbtide.cli.runs import LIMIT, show_candidates
from ebbtide.cli.values import parse_when
from ebbtide.documents import instant
from ebbtide.durations import format_duration
from ebbtide.errors import InvalidInput
from ebbtide.formats.schemes import has_rules, scheme_of
from ebbtide.gc import FOUND
from ebbtide.ids import descending_id
from ebbtide.model import EPOCH
from ebbtide.retention.dates import DATE_FORMS
from ebbtide.text import count_text, date_text, size_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ebbtide.formats.capabilities import CommitHistory, WithExpiry
    from ebbtide.formats.schemes import Scheme
    from ebbtide.gc.preview import Preview
    from ebbtide.model import Commit, RefKind
    from ebbtide.retention import Policy
    from ebbtide.retention.expiry import Expiry, ExpiryRequest
    from ebbtide.settings import Settings

SHOWN_MAX: Final = 20
"""The most snapshots that are listed for people; `--json` has all."""


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "expire")(expire)


def _keep(help_text: str) -> Any:  # Typer types options as Any
    return typer.Option(metavar="N", min=1, help=help_text)


def _keep_of_each(period: str) -> Any:
    return _keep(f"Keep the newest snapshot of each of the newest N {period}s.")


IcechunkArgument = Annotated[
    str,
    typer.Argument(
        metavar="REPO",
        help="icechunk:PATH, icechunk:URL or iceberg:CATALOG[.NAMESPACE[.TABLE]].",
    ),
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help=f"Expire snapshots older than a period, such as 30d, or a date: {DATE_FORMS}.",
    ),
]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help=f"A policy with rules for branches: {POLICY_FORMS}",
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
    typer.Option(
        "--dry-run", help="Only show the changes, and the files that would be deleted then."
    ),
]
Addresses = Annotated[
    bool, typer.Option("--addresses", help="List files with their names and addresses.")
]
Files = Annotated[
    bool,
    typer.Option("--files", help="With --dry-run: also list the files that would be deleted then."),
]
FilesLimit = Annotated[int, typer.Option(metavar="N", min=1, help="The most files to list.")]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe", help="Allow expiring snapshots younger than the grace of the repository."
    ),
]


Undo = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="List the snapshots again that this expiry of Iceberg tables removed; or 'latest'. "
        "Takes none of the options that select snapshots.",
    ),
]


@dataclass(frozen=True, slots=True)
class Expiring:
    """A repository whose history an expiry cuts, and how long clients may use what no ref names."""

    name: str
    found: WithExpiry
    sessions: timedelta
    scheme: Scheme

    @property
    def grace(self) -> str:
        """The grace for people, with the name of its setting."""
        return f"{self.scheme.grace_setting}, {format_duration(self.sessions)}"

    def deletable_at(self, modified_at: datetime) -> datetime:
        """Returns when a run can delete a file that an expiry frees now."""
        now = self.found.now()
        return max(now, (now if self.scheme.holds_released else modified_at) + self.sessions)


class KeepOptions(TypedDict, total=False):
    """How many snapshots stay reachable, as in a rule of a policy."""

    keep_last: Annotated[int | None, _keep("Keep the newest N snapshots of each branch.")]
    keep_hourly: Annotated[int | None, _keep_of_each("hour")]
    keep_daily: Annotated[int | None, _keep_of_each("day")]
    keep_weekly: Annotated[int | None, _keep_of_each("week")]
    keep_monthly: Annotated[int | None, _keep_of_each("month")]
    keep_yearly: Annotated[int | None, _keep_of_each("year")]


def expire(
    cli: Cli,
    repository: IcechunkArgument,
    older_than: OlderThan = None,
    *,
    policy: PolicyFile = None,
    delete_expired_branches: DeleteExpiredBranches = False,
    delete_expired_tags: DeleteExpiredTags = False,
    dry_run: DryRun = False,
    files: Files = False,
    addresses: Addresses = False,
    limit: FilesLimit = LIMIT,
    unsafe: Unsafe = False,
    undo: Undo = None,
    master: MasterOption = None,
    yes: YesOption = False,
    **keep: Unpack[KeepOptions],
) -> None:
    """Cut old snapshots off the history of an Icechunk repository, or off Iceberg tables. Deletes
    no object.

    A snapshot that a branch or tag points at stays, and so does the first snapshot of an Icechunk
    repository. With --keep options or a policy, chosen older snapshots stay. Iceberg tables keep
    what their own rules keep, too. 'gc run' deletes the files of snapshots that went. --undo lists
    the snapshots of Iceberg tables again, if all of their files exist.
    """
    cli.when_interrupted(lambda: "Interrupted before its end: nothing was changed")

    from ebbtide.retention.expiry import ExpiryRequest

    rule = {name: cast("int", count) for name, count in keep.items() if count is not None}
    deleted: dict[RefKind, bool] = {"branch": delete_expired_branches, "tag": delete_expired_tags}
    if undo is not None:
        if rule or older_than or policy or dry_run or files or unsafe or any(deleted.values()):
            raise InvalidInput(
                "invalid_argument", "--undo brings back what one expiry removed: give it alone"
            )
        _undo(cli, repository, undo, yes=yes)
        return
    opened = _opened(repository, cli.settings)
    now = opened.found.now()
    request = ExpiryRequest.of(
        now=now,
        sessions=opened.sessions,
        older_than=None if older_than is None else parse_when(older_than, now, before=True),
        rule=rule or None,
        policy=None if policy is None else read_policy(policy),
        delete_refs=[kind for kind, wanted in deleted.items() if wanted],
        unsafe=unsafe,
        has_rules=has_rules(repository),
    )
    if not dry_run:
        require_answerable(yes=yes)
    if dry_run:
        listed = limit if files or addresses else 0
        _show_dry_run(cli, opened, request, files=listed, addresses=addresses, master=master)
    else:
        _expire(cli, opened, request, yes=yes)


def _opened(repository: str, settings: Settings, *, run_dir: str | None = None) -> Expiring:
    from ebbtide.formats.capabilities import WithExpiry

    scheme = scheme_of(repository)
    if scheme is None or not scheme.has_expiry:
        raise InvalidInput(
            "invalid_argument",
            f"{repository!r} is not icechunk:PATH, icechunk:URL or iceberg:CATALOG: for a "
            "repository of the store, use 'ebbtide retention set'",
        )
    found, sessions = scheme.open(repository, settings, run_dir=run_dir)
    assert isinstance(found, WithExpiry)
    return Expiring(repository, found, sessions, scheme)


def _expire(cli: Cli, opened: Expiring, request: ExpiryRequest, *, yes: bool) -> None:
    from ebbtide.formats.capabilities import UndoesExpiry
    from ebbtide.gc.hold import expire as carry_out
    from ebbtide.gc.options import RunOptions

    name, found = opened.name, opened.found
    history, expiry = found.plan_expiry(request)
    if not cli.output.as_json:
        _show_expiry(cli, opened, history, expiry, request)
    if expiry.is_empty or not confirm("rewrite the history like this?", yes=yes):
        document = _document(opened, history, expiry, done=False)
        cli.output.answer(document, lambda: cli.output.say("nothing was changed"))
        return
    cli.when_interrupted(
        lambda: (
            "Interrupted while the history was rewritten: no object was deleted, and the part "
            "that was not rewritten yet is unchanged"
        )
    )
    cli.progress("expire", "start")
    expire_id = descending_id(found.now())
    with cli.progress:
        options = RunOptions.of(cli.settings)
        history, expiry = carry_out(found, request, options, expire_id)
        cli.progress("expire", "end")

    def show() -> None:
        cli.output.line("done; no object was deleted")
        cli.output.line("a run deletes unreachable snapshots after the grace")
        cli.output.line()
        show_block(
            cli,
            [
                ("repository", f"{name}, {date_text(datetime.now(UTC))} UTC, by {made_by()}"),
                ("released", count_text(len(expiry.released), "snapshot")),
                ("kept", count_text(len(history.commits) - len(expiry.released), "snapshot")),
                ("rewritten", count_text(len(expiry.new_parents), "snapshot")),
                ("refs deleted", count_text(len(expiry.deleted_refs))),
                ("collect", command_line(cli.context, ("gc", "run"), (name,))),
                *(
                    [("undo", command_line(cli.context, ("expire",), (name, "--undo", expire_id)))]
                    if isinstance(found, UndoesExpiry)
                    else []
                ),
            ],
        )

    cli.output.answer(_document(opened, history, expiry, done=True) | {"id": expire_id}, show)


def _undo(cli: Cli, name: str, expire_id: str, *, yes: bool) -> None:
    from ebbtide.gc.hold import undo_expiry
    from ebbtide.gc.options import RunOptions

    found = _opened(name, cli.settings).found
    back: dict[str, list[int | str]] = {}
    if confirm(f"list the snapshots of expiry {expire_id} again?", yes=yes):
        with cli.progress:
            options = RunOptions.of(cli.settings)
            back = {k: list(each) for k, each in undo_expiry(found, expire_id, options).items()}
    rows = [[table, str(each)] for table, ids in back.items() for each in ids]

    def show() -> None:
        cli.output.table(["table", "listed again"], rows, none="nothing was changed")

    restored = [{"table": table, "snapshot_id": each} for table, each in rows]
    cli.output.answer({"repository": name, "done": bool(rows), "restored": restored}, show)


def _show_dry_run(
    cli: Cli,
    opened: Expiring,
    request: ExpiryRequest,
    *,
    files: int,
    addresses: bool,
    master: str | None,
) -> None:
    history, expiry = opened.found.plan_expiry(request)
    freed = _preview(cli, opened.name, expiry, files=files, master=master)
    document = _document(opened, history, expiry, done=False)
    document["collectable"] = {
        "count": freed.total.objects,
        "bytes": freed.total.bytes_total,
        "kinds": {
            kind: {"objects": count.objects, "bytes_total": count.bytes_total}
            for kind, count in freed.kinds.items()
        },
    }
    listed = _named(opened, history, expiry, freed.files)
    if files:
        document["files"] = [
            row | {date: instant(row[date]) for date in ("last_modified", "deletable_at")}
            for row in listed
        ]

    def show() -> None:
        _show_expiry(cli, opened, history, expiry, request)
        if not expiry.is_empty:
            cli.output.line()
            rows = [
                [kind, count_text(count.objects), size_text(count.bytes_total)]
                for kind, count in freed.kinds.items()
            ]
            headers = [FOUND["candidate"], "count", "size"]
            cli.output.table(headers, rows, right=headers[1:], none="no file would be deleted")
        if listed:
            cli.output.line()
            show_candidates(cli, listed, total=freed.total.objects, addresses=addresses)
        cli.output.line()
        cli.output.line("nothing was changed")

    cli.output.answer(document, show)


def compare_expiries(
    cli: Cli, repository: str, policies: Mapping[str, Policy], *, master: str | None
) -> None:
    """Answers with what an expiry by each policy would release, and the files that this frees."""
    from ebbtide.retention.expiry import ExpiryRequest

    opened = _opened(repository, cli.settings)
    now = opened.found.now()
    rows: list[list[str]] = []
    lines: list[str] = []
    documents: list[dict[str, Any]] = []
    for name, policy in policies.items():
        request = ExpiryRequest.of(now=now, sessions=opened.sessions, policy=policy)
        history, expiry = opened.found.plan_expiry(request)
        freed = _preview(cli, repository, expiry, files=0, master=master).total
        released, objects, size = len(expiry.released), freed.objects, freed.bytes_total
        rows.append([name, count_text(released), count_text(objects), size_text(size)])
        why = f"; {_why_nothing(opened, history, request)}" if expiry.is_empty else ""
        lines.append(f"{name}: {policy.describe()}{why}")
        counts = {"released_count": released, "candidate_count": objects, "candidate_bytes": size}
        told = {"policy": policy.to_mapping(), "warnings": list(expiry.warnings)}
        documents.append({"name": name, **counts, **told})

    def show() -> None:
        headers = ["policy", "released", FOUND["candidate"], "size"]
        cli.output.table(headers, rows, right=headers[1:])
        for line in (*lines, "nothing was changed"):
            cli.output.line(line)

    document = {"repository": repository, "now": instant(now), "policies": documents}
    cli.output.answer(document, show)


def _newest_first(history: CommitHistory, expiry: Expiry) -> list[Commit]:
    released = [history.commits[each] for each in expiry.released]
    return sorted(released, key=lambda commit: commit.created_at, reverse=True)


def _named(
    opened: Expiring, history: CommitHistory, expiry: Expiry, rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the rows of files with their names, and with the dates from which on they can go."""
    from ebbtide.audit.candidate_names import with_names

    return [
        row | {"deletable_at": opened.deletable_at(row["last_modified"])}
        for row in with_names(opened.found, rows, _newest_first(history, expiry))
    ]


def _preview(cli: Cli, name: str, expiry: Expiry, *, files: int, master: str | None) -> Preview:
    """Returns the files that an expiry makes collectable, when they are older than the grace."""
    from ebbtide.gc.options import RunOptions
    from ebbtide.gc.preview import Preview, preview

    if expiry.is_empty:
        return Preview({}, [])
    settings, progress = cli.settings, cli.progress
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as directory, progress:
        opened = _opened(name, settings, run_dir=directory)
        options = RunOptions.of(
            settings,
            sessions=opened.sessions,
            grace=timedelta(0),
            unsafe=True,
            allow_share=True,
            run_dir=directory,
        )
        return preview(
            opened.found.expired(None),
            opened.found.expired(expiry),
            engine=make_engine(settings, master, progress),
            options=options,
            files_max=files,
            observer=progress,
        )


def _show_expiry(
    cli: Cli, opened: Expiring, history: CommitHistory, expiry: Expiry, request: ExpiryRequest
) -> None:
    for warning in expiry.warnings:
        cli.output.warn(warning)
    if request.policy is not None:
        cli.output.line(f"policy: {request.policy.describe()}")
        cli.output.line()
    if expiry.is_empty:
        why = _why_nothing(opened, history, request)
        cli.output.line(f"there is nothing to expire: {why}")
        return
    from ebbtide.audit.candidate_names import names_of_commits

    released = _newest_first(history, expiry)[::-1]
    some = released[:SHOWN_MAX]
    names = names_of_commits(opened.found, some)
    cli.output.table(
        ["released", "written", "name"],
        [
            [commit.commit_id, date_text(commit.created_at), name]
            for commit, name in zip(some, names, strict=True)
        ],
        none="no snapshot is released: branches and tags still reach all",
    )
    if len(released) > SHOWN_MAX:
        cli.output.line(f"and {count_text(len(released) - SHOWN_MAX)} more: --json lists all")
    cli.output.line()
    cli.output.line(
        f"{count_text(len(released), 'snapshot')} released, "
        f"{count_text(len(expiry.new_parents), 'snapshot')} with another parent"
    )
    if released:
        end = opened.deletable_at(max(commit.created_at for commit in released))
        cli.output.line(
            f"runs can delete their files from {date_text(end)} UTC on ({opened.grace})"
        )
    for ref in expiry.deleted_refs:
        cli.output.line(f"{ref.kind} {ref.name} deleted (it points at {ref.commit_id})")


def _why_nothing(opened: Expiring, history: CommitHistory, request: ExpiryRequest) -> str:
    if request.policy is None and request.older_than == EPOCH:
        snapshots = count_text(len(history.commits), "snapshot")
        return f"the rules of the tables keep {snapshots}"
    bound = request.older_than if request.policy is None else request.younger
    older = sum(commit.created_at < bound for commit in history.commits.values())
    if not older:
        snapshots = count_text(len(history.commits), "snapshot")
        why = "" if request.policy is None else f", one grace ago ({opened.grace})"
        return f"none of {snapshots} is older than {date_text(bound)} UTC{why}"
    old = count_text(older, "snapshot is", "snapshots are")
    return f"{old} old enough, but kept by refs or rules, or already unreachable"


def _document(
    opened: Expiring, history: CommitHistory, expiry: Expiry, *, done: bool
) -> dict[str, Any]:
    return {
        "repository": opened.name,
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
                "written_at": instant(history.commits[snapshot_id].created_at),
            }
            for snapshot_id in sorted(expiry.released)
        ],
        "deleted_refs": [
            {"kind": ref.kind, "name": ref.name, "snapshot_id": ref.commit_id}
            for ref in expiry.deleted_refs
        ],
    }
