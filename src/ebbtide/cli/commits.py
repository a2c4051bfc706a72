"""The commands on commits: `commit`, `merge`, `revert`, `cherry-pick`, `reset`, `log` and `diff`.

`import` makes one commit of objects that stay outside the repository.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ebbtide.cli import values
from ebbtide.cli.command import (
    BranchArgument,
    Cli,
    RefArgument,
    RepositoryArgument,
    YesOption,
    command,
)
from ebbtide.cli.lifecycle import warn_of_expiry
from ebbtide.cli.values import parse_pairs
from ebbtide.documents import Document, document_of
from ebbtide.errors import InvalidInput
from ebbtide.gc import EXPIRES_NEXT
from ebbtide.retention.dates import DATE_FORMS, parse_date
from ebbtide.text import (
    age_at,
    count_text,
    date_text,
    escaped,
    one_line,
    short_id,
    shown,
    size_text,
)

if TYPE_CHECKING:
    from ebbtide.quarantined import Fate
    from ebbtide.retention.decision import Decision
    from ebbtide.store.commits.commits import Commits
    from ebbtide.store.content.differences import Change
    from ebbtide.store.database.commit_rows import CommitRecord
    from ebbtide.store.imports import ImportRequest, Imports
    from ebbtide.store.repository import Repository


def _not_empty(message: str | None) -> str | None:
    """Returns a message. Raises InvalidInput `invalid_argument` for one of blanks alone."""
    if message is not None and not message.strip():
        raise InvalidInput(
            "invalid_argument", "the message is empty: -m TEXT says what the commit changes"
        )
    return message


_MESSAGE: Any = typer.Option(  # Typer types options as Any
    "--message",
    "-m",
    metavar="TEXT",
    help="Message of the commit.",
    show_default=False,
    callback=_not_empty,
)
MessageOption = Annotated[str | None, _MESSAGE]
MetaOption = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="NAME=VALUE", help="Metadata; repeatable."),
]
DateOption = Annotated[
    str | None,
    typer.Option(
        "--date",
        metavar="DATE",
        help=f"Date, for imported histories: {DATE_FORMS}. It cannot be in the future, before the "
        "parent's date, or before 1970.",
    ),
]
CommitterOption = Annotated[
    str,
    typer.Option("--committer", metavar="NAME", help="Name of the committer."),
]

MARKS = {"added": "+", "removed": "-", "changed": "~"}


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    for name, function in (
        ("commit", commit),
        ("merge", merge),
        ("revert", revert),
        ("cherry-pick", cherry_pick),
        ("reset", reset),
        ("import", import_objects),
        ("log", log),
        ("diff", diff),
    ):
        command(app, name)(function)


def commit(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    message: Annotated[str, _MESSAGE],
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
    _require_source_first(found, ref, branch, "revert")
    made = found.commits.revert(
        branch,
        ref,
        parent_number=parent,
        message=message,
        date=None if date is None else parse_date(date),
        committer=committer,
    )
    _answer(cli, made, branch)


def cherry_pick(
    cli: Cli,
    repository: RepositoryArgument,
    ref: RefArgument,
    branch: BranchArgument,
    message: MessageOption = None,
    parent: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="For a merge: the parent to compare with, counted from 1.",
            show_default=False,
        ),
    ] = None,
    meta: MetaOption = None,
    committer: CommitterOption = "",
) -> None:
    """Repeat the changes of one commit on a branch, with a new commit.

    Without -m and --meta, the new commit has the message and the metadata of the picked one. Its
    metadata name the picked commit, as cherry-pick-origin.
    """
    found = cli.repository(repository)
    _require_source_first(found, ref, branch, "cherry-pick")
    made = found.commits.cherry_pick(
        branch,
        ref,
        parent_number=parent,
        message=message,
        metadata=None if meta is None else parse_pairs(meta, option="--meta"),
        committer=committer,
    )
    _answer(cli, made, branch)


def _require_source_first(repository: Repository, ref: str, branch: str, word: str) -> None:
    """Raises InvalidInput `invalid_argument` if the branch stands before the commit."""
    names = {each.name for each in repository.branches.list()}
    if branch not in names and ref in names:
        raise InvalidInput(
            "invalid_argument",
            f"there is no branch {shown(branch)}: the commit comes first, then the branch, as in: "
            f"ebbtide {word} REPO {shlex.join([branch, ref])}",
        )


def reset(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    path: Annotated[str | None, typer.Option(metavar="PATH", help="Only this path.")] = None,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Only paths that begin with this."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            autocompletion=values.refs,
            help="Move the branch to this commit. Staged changes refuse it, unless --force is "
            "given.",
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
    cli.output.answer(document_of(made), lambda: cli.output.line(text))


def import_objects(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="URL or path of an object; or of a prefix or directory, with a slash at the end.",
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DEST",
            help="Path of the object. For a prefix: the directory of the branch that it replaces, "
            "'' for the whole branch.",
        ),
    ],
    message: MessageOption = None,
    meta: MetaOption = None,
    committer: CommitterOption = "",
) -> None:
    """Import objects where they are: commit their addresses, and copy nothing.

    The objects must be outside the roots of all repositories, of Icechunk and lakeFS too: there
    they may be collected. Elsewhere Ebbtide never deletes them. Paths of the branch below DEST that
    the prefix does not have are deleted by the commit.
    """
    from ebbtide.store.commits.publication import CommitDetails
    from ebbtide.store.import_sources import ImportSource
    from ebbtide.store.imports import ImportRequest

    metadata = parse_pairs(meta or [], option="--meta")
    source = ImportSource(url, destination, is_prefix=url.endswith("/"))
    request = ImportRequest(
        branch=branch,
        sources=(source,),
        details=CommitDetails(message or "", committer, None, metadata),
    )
    imports = cli.repository(repository).imports
    made, count = _run_import(cli, imports, request)
    text = f"imported {count_text(count, 'object')}: {branch} is at commit "
    text += f"{short_id(made.commit_id)}: {one_line(made.message)}"
    cli.output.answer(document_of(made) | {"object_count": count}, lambda: cli.output.line(text))


def _run_import(cli: Cli, imports: Imports, request: ImportRequest) -> tuple[CommitRecord, int]:
    """Carries out an import with its progress. Returns the commit, and the number of objects."""
    from ebbtide.gc.steps import Meter, advance
    from ebbtide.store.imports import Signs

    import_id = imports.begin(request)

    def done() -> str | None:
        made = imports.state(request.branch, import_id).commit
        if made is None:
            return None
        return f"Interrupted, but the import is done: commit {made.commit_id}"

    cli.when_interrupted(lambda: "Interrupted: nothing was imported", done=done)
    meter = Meter()
    cli.progress.watch(meter)
    total = 0

    def counted(count: int) -> None:
        nonlocal total
        advance(count - total)
        total = count

    with cli.progress:
        cli.progress("import", "start")
        meter.begin("objects")
        made = imports.run(import_id, request, Signs(counted=counted))
    return made, total


def log(
    cli: Cli,
    repository: RepositoryArgument,
    ref: Annotated[
        str | None,
        typer.Argument(
            metavar="REF",
            help="A branch, tag or commit id; ~N or ^N after it names an ancestor. Default: the "
            "repository's default branch.",
            show_default=False,
            autocompletion=values.refs,
        ),
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Follow only the first parent of each merge.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The most commits to list.")] = 100,
    after: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="List only commits after this id."),
    ] = None,
) -> None:
    """List a commit and its ancestors, youngest first, also those that are quarantined or gone.

    'retention show --commits' also says why each commit is kept.
    """
    opened = cli.repository(repository)
    ref = opened.info.default_branch if ref is None else ref
    warn_of_expiry(cli, repository, ref)
    found = opened.commits.log(ref, first_parent=first_parent, after=after, amount=limit)
    fates = opened.fates({record.closed_by for record in found if record.closed_by})

    def show() -> None:
        now, decision = datetime.now(UTC), _decision(cli, repository)
        with_committer = any(record.committer for record in found)
        cli.output.table(
            ["commit", "created", "age", "state", *["committer"] * with_committer, "message"],
            [
                [
                    short_id(record.commit_id),
                    date_text(record.created_at),
                    age_at(record.created_at, now),
                    commit_state(record.commit_id, decision, record, fates),
                    *[one_line(record.committer)] * with_committer,
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

    cli.output.answer({"commits": [_commit_document(record, fates) for record in found]}, show)


def _fate(record: CommitRecord, fates: Mapping[str, Fate]) -> Fate | None:
    """Returns what became of the data of a closed commit; None for all other commits."""
    return None if record.given_up_at is not None else fates.get(record.closed_by or "")


def _commit_document(record: CommitRecord, fates: Mapping[str, Fate]) -> Document:
    """Returns the document of a commit, which says until when a quarantine has its data."""
    fate = _fate(record, fates)
    return document_of(record) | ({} if fate is None else fate.fields())


def _decision(cli: Cli, repository: str) -> Decision | None:
    """Returns what the policy decides about all commits. None without a policy: all are kept."""
    from ebbtide.retention.decision import decide

    policy = (found := cli.with_policy(repository)).policy()
    return None if policy is None else decide(found.roots(policy))


def commit_state(
    commit_id: str, decision: Decision | None, known: CommitRecord | None, fates: Mapping[str, Fate]
) -> str:
    """Returns the state of a commit in words. `known` is its record, if there is one."""
    if known is not None and not known.is_intact:
        fate = _fate(known, fates)
        return "gone" if fate is None else fate.commit_state
    return "kept" if decision is None or commit_id in decision.active else EXPIRES_NEXT


def diff(
    cli: Cli,
    repository: RepositoryArgument,
    left: RefArgument,
    right: Annotated[
        str | None,
        typer.Argument(
            metavar="RIGHT",
            help="The ref to compare with. Default: the staged changes of the branch REF.",
        ),
    ] = None,
    prefix: Annotated[
        str,
        typer.Option(metavar="PREFIX", help="Only paths that begin with this."),
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
        cli.output.answer(
            {"changes": [_change_document(change) for change in changes]}, lambda: None
        )
        return
    count = 0
    for change in changes:
        count += 1
        cli.output.line(f"{MARKS[change.kind]} {escaped(change.path)}{_sizes(change)}")
    cli.output.say(count_text(count, "path differs", "paths differ"))


def _change_document(change: Change) -> Document:
    return {
        "path": change.path,
        "kind": change.kind,
        "left": None if change.left is None else document_of(change.left),
        "right": None if change.right is None else document_of(change.right),
    }


def _sizes(change: Change) -> str:
    sizes = [size_text(side.size_bytes) for side in (change.left, change.right) if side is not None]
    return f"  ({' → '.join(sizes)})"
