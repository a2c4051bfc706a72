"""The commands `purge`: delete named data at once, with a signed record."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli import values
from ebbtide.cli.command import Cli, RepositoryArgument, command, command_line, group
from ebbtide.cli.figures import made_by
from ebbtide.cli.gc import ConfOption, MasterOption
from ebbtide.cli.output import confirm_name
from ebbtide.cli.progress import share_text
from ebbtide.documents import document_of
from ebbtide.errors import EbbtideError, ExitCode, Failed, Incomplete, InvalidInput, Refused
from ebbtide.text import count_text, date_text, escaped, one_line, size_text

if TYPE_CHECKING:
    from ebbtide.gc.engines.base import Engine
    from ebbtide.purge.plan import PurgeReport
    from ebbtide.purge.purger import Purges
    from ebbtide.store.purge_records import PurgeRow

app = group("Delete named data at once and for good; list, show and verify purges.")

CONFIRM_OPTION = "--yes-i-mean"
SHOWN_MAX = 20

PurgeArgument = Annotated[
    str,
    typer.Argument(
        metavar="PURGE",
        help="Id of the purge.",
        autocompletion=values.purges,
    ),
]
MeantOption = Annotated[
    str | None,
    typer.Option(
        CONFIRM_OPTION,
        metavar="NAME",
        help="Confirm with the name of the repository, instead of typing it when asked.",
    ),
]
ObjectsOption = Annotated[bool, typer.Option("--objects", help="List the objects.")]
LimitOption = Annotated[int, typer.Option(metavar="N", min=1, help="The most objects to list.")]
ReasonOption = Annotated[
    str,
    typer.Option(metavar="TEXT", help="The reason, for the record."),
]
PathsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REF:PATH",
        help="A path at a branch, tag or commit; at a branch, also the staged object. Repeatable.",
    ),
]
CommitsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="REF", help="All objects of the commit of a ref. Repeatable."),
]
CollectionsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID|PATH",
        help="A collection, with its kept versions; also by its id for Arvados's clients, or its "
        "portable data hash. Repeatable.",
    ),
]
WholeOption = Annotated[
    bool, typer.Option("--repository", help="The whole repository, with all of its history.")
]
AllHistoryOption = Annotated[
    bool,
    typer.Option(
        "--all-history",
        help="Also name every commit that has one of the objects, under any path.",
    ),
]
KeepSharedOption = Annotated[
    bool,
    typer.Option(
        "--keep-shared",
        help="Keep objects that other data needs, instead of refusing the purge.",
    ),
]
DeleteVersionsOption = Annotated[
    bool,
    typer.Option(
        "--delete-versions",
        help="S3: delete the versions that the bucket keeps of these objects too. "
        "Default: EBBTIDE_DELETE_VERSIONS.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show the objects, and the references to them.")
]


@command(app, "run")
def run(
    cli: Cli,
    repository: RepositoryArgument,
    reason: ReasonOption,
    path: PathsOption = None,
    commit: CommitsOption = None,
    collection: CollectionsOption = None,
    whole: WholeOption = False,
    all_history: AllHistoryOption = False,
    keep_shared: KeepSharedOption = False,
    delete_versions: DeleteVersionsOption = False,
    dry_run: DryRunOption = False,
    limit: LimitOption = SHOWN_MAX,
    meant: MeantOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Delete named data at once, without regard to trash, grace and leases.

    The purge is refused while anything that was not named refers to the data, except with
    --keep-shared. The history does not change. Reading purged data fails with the error `purged`.
    """
    from ebbtide.purge.request import PathTarget, Request

    purges = _working(cli, master, conf)
    request = Request(
        reason=reason,
        who=_who(),
        paths=tuple(map(PathTarget.parse, path or ())),
        commits=tuple(commit or ()),
        collections=tuple(collection or ()),
        repository=whole,
        all_history=all_history,
        keep_shared=keep_shared,
        delete_versions=delete_versions,
    )
    request.check()
    name = cli.repository(repository).info.name
    if not dry_run and meant is not None:
        confirm_name("", name, given=meant, option=CONFIRM_OPTION)
    purge_id = purges.begin(name, request).purge_id
    if dry_run:
        # After a dry run, no text names a command that deletes.
        cli.when_interrupted(lambda: "Interrupted: nothing was deleted")
    else:
        _when_interrupted(cli, purges, purge_id)
    with cli.progress, nullcontext() if dry_run else _resumable(cli, purges, purge_id):
        planned = purges.carry_out(purge_id, dry_run=True)
    if dry_run or planned.row.state != "planned":
        _finish(cli, purges, planned, limit=limit)
    if not cli.output.as_json:
        _show(cli, purges, planned, limit=limit)
    _carry_out(cli, purges, planned, meant=meant)


@command(app, "resume")
def resume(
    cli: Cli,
    purge_id: PurgeArgument,
    meant: MeantOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Continue a purge that was stopped, failed in part, or was only planned."""
    purges = _working(cli, master, conf)
    found = purges.show(purge_id)
    _when_interrupted(cli, purges, purge_id)
    _carry_out(cli, purges, found, meant=meant)


def _when_interrupted(cli: Cli, purges: Purges, purge_id: str) -> None:
    """Sets the text for an interrupt during a purge."""

    def told() -> str:
        deleting = cli.progress.reached("delete")
        if deleting is None:
            closed = purges.find(purge_id).closed_at is not None
            return f"Interrupted: nothing was deleted{', but the named data is closed' * closed}"
        return f"Interrupted: {share_text(deleting)} handled; the named data is closed"

    cli.when_interrupted(told, ("purge", "resume"), (purge_id,))


@contextmanager
def _resumable(cli: Cli, purges: Purges, purge_id: str) -> Iterator[None]:
    """Adds the command that resumes the purge to an error in the block. A new purge would not find
    objects that are closed already."""
    from ebbtide.purge.purger import ENDED
    from ebbtide.store.purge_records import CLOSED

    try:
        yield
    except (Failed, Refused) as error:
        state = ""
        with suppress(EbbtideError):
            state = purges.find(purge_id).state
        way = f"Continue with: {command_line(cli.context, ('purge', 'resume'), (purge_id,))}"
        if state in CLOSED:
            raise Incomplete(
                "incomplete",
                f"the purge was stopped: {error.message}. The named data is closed, but not all of "
                f"it is deleted. {way}",
            ) from error
        if isinstance(error, Refused) or state in ENDED:
            raise
        raise Failed(error.kind, f"{error.message}. {way}", **error.details) from error


def _carry_out(cli: Cli, purges: Purges, found: PurgeReport, *, meant: str | None) -> None:
    row = found.row
    plan = found.plan
    size = "" if plan is None else f" ({size_text(plan.bytes_total)})"
    objects = "the named data" if plan is None else count_text(plan.object_count, "object") + size
    question = f"delete {objects} of {row.repository_name} for good?"
    if not confirm_name(question, row.repository_name, given=meant, option=CONFIRM_OPTION):
        cli.declined(f"nothing was deleted; the plan stays: ebbtide purge resume {row.purge_id}")
        return
    with cli.progress, _resumable(cli, purges, row.purge_id):
        done = purges.carry_out(row.purge_id)
    _finish(cli, purges, done, limit=0)


@command(app, "list")
def list_all(cli: Cli, repository: RepositoryArgument) -> None:
    """List the purges of a repository, even if it was deleted."""
    from ebbtide.purge.request import asked_by

    found = _purges(cli).list(repository)

    def show() -> None:
        cli.output.table(
            ["purge", "started", "state", "by", "reason"],
            [
                [
                    row.purge_id,
                    date_text(row.started_at),
                    row.state,
                    asked_by(row.request["who"]),
                    one_line(row.request["reason"]),
                ]
                for row in found
            ],
            none="no purges",
        )

    cli.output.answer({"purges": [document_of(row) for row in found]}, show)


@command(app, "show")
def show(
    cli: Cli,
    purge_id: PurgeArgument,
    objects: ObjectsOption = False,
    limit: LimitOption = SHOWN_MAX,
) -> None:
    """Show the objects, the references and the outcome of a purge."""
    purges = _purges(cli)
    found = purges.show(purge_id)
    document = _document(purges, found, limit=limit if objects else 0)
    cli.output.answer(document, lambda: _show(cli, purges, found, limit=limit if objects else 0))


@command(app, "verify")
def verify(cli: Cli, purge_id: PurgeArgument) -> None:
    """Check a purge's record and signature, that its objects are gone, and that they stay closed.

    If anything differs from the record, the command names it and ends with exit code 1.
    """
    from ebbtide.purge.verifying import verify as compare

    found = compare(cli.store, purge_id)

    def show() -> None:
        for difference in found.differences:
            cli.output.line(f"{difference.kind}: {escaped(difference.text)}")
        if not found.differences:
            cli.output.line(
                f"purge {purge_id}: {count_text(found.address_count, 'address', 'addresses')}, "
                "all as the record says"
            )

    cli.output.answer(document_of(found), show)
    raise typer.Exit(ExitCode.FAILED if found.differences else ExitCode.DONE)


@command(app, "key")
def key(cli: Cli) -> None:
    """Print the public keys for the signatures of records, the present signing key first."""
    keys = _purges(cli).keys
    keys.current()
    found = keys.public_keys()
    document = {
        "keys": [
            {"key_id": key_id, "algorithm": "Ed25519", "public_key": public_key}
            for key_id, public_key in found.items()
        ]
    }

    def show() -> None:
        for key_id, public_key in found.items():
            cli.output.line(f"{key_id}  {public_key}")

    cli.output.answer(document, show)


def _purges(cli: Cli) -> Purges:
    from ebbtide.purge.purger import Purges

    return Purges(cli.store)


def _working(cli: Cli, master: str | None, conf: Sequence[str] | None) -> Purges:
    """Returns the purges with an engine: Spark reads the trees of a long history, and is not loaded
    for a short one."""
    from ebbtide.cli.collectors import make_engine
    from ebbtide.gc.engines.spark.conf import read_pairs
    from ebbtide.purge.purger import Purges

    store = cli.store
    read_pairs(conf or ())

    @cache
    def engine() -> Engine:
        made = make_engine(store.settings, master, cli.progress, conf=conf or ())
        cli.progress.watch(purges.meter)
        return made

    purges = Purges(store, notice=cli.progress.notice, engine=engine)
    cli.progress.watch(purges.meter)
    return purges


def _who() -> dict[str, str]:
    """Returns the system's user and host. A user who can open the store is its administrator."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        raise InvalidInput(
            "invalid_argument", "the system has no name for this user: set USER"
        ) from None
    return {"user": user, "host": socket.gethostname()}


def _document(purges: Purges, found: PurgeReport, *, limit: int) -> dict[str, Any]:
    document = document_of(found)
    if limit:
        document["objects"] = purges.objects(found, limit=limit)
    return document


def _finish(cli: Cli, purges: Purges, found: PurgeReport, *, limit: int) -> None:
    """Answers, and ends with the exit code of the purge's state."""
    document = _document(purges, found, limit=limit)
    cli.output.answer(document, lambda: _show(cli, purges, found, limit=limit))
    if found.row.error is not None:
        cli.output.error(found.row.error["message"])
    elif EXIT_CODES[found.row.state] == ExitCode.INCOMPLETE:
        again = command_line(cli.context, ("purge", "resume"), (found.row.purge_id,))
        cli.output.error(
            "not all of the named data is deleted, and the rest cannot be read any more. "
            f"Continue with: {again}"
        )
    raise typer.Exit(EXIT_CODES[found.row.state])


EXIT_CODES = {
    "planning": ExitCode.FAILED,
    "failed": ExitCode.FAILED,
    "planned": ExitCode.DONE,
    "refused": ExitCode.REFUSED,
    "deleting": ExitCode.INCOMPLETE,
    "incomplete": ExitCode.INCOMPLETE,
    "done": ExitCode.DONE,
}


def _show(cli: Cli, purges: Purges, found: PurgeReport, *, limit: int) -> None:
    from ebbtide.purge.request import asked_by

    row, plan, output = found.row, found.plan, cli.output
    figures = found.figures
    fields = [
        ("purge", f"{row.purge_id} {row.state}"),
        ("repository", row.repository_name),
        ("asked for by", asked_by(row.request["who"])),
        ("reason", one_line(row.request["reason"])),
        ("started", date_text(row.started_at)),
        ("closed", date_text(row.closed_at)),
        ("finished", date_text(row.finished_at)),
        ("objects", count_text(figures.object_count)),
        ("size", size_text(figures.size_bytes)),
        *_kept(found),
        ("versions", _versions(found)),
        *((name, count_text(count)) for name, count in figures.outcomes.items()),
        ("files", row.record_url),
        *_ways_on(cli, row),
        ("by", made_by()),
    ]
    output.fields([(name, escaped(value)) for name, value in fields if value])
    if plan is not None and plan.foreign_count:
        foreign = count_text(plan.foreign_count, "file")
        output.line(f"kept: {foreign} under the storage root that Ebbtide did not write")
    for warning in figures.warnings:
        output.warn(warning)
    if limit and plan is not None:
        output.line()
        _show_objects(cli, purges.objects(found, limit=limit))
    if plan is not None and plan.reference_count:
        output.line()
        _show_references(cli, found)
    if plan is not None and plan.kept_references:
        output.line()
        _show_references(cli, found, to_kept=True)


def _kept(found: PurgeReport) -> list[tuple[str, str]]:
    """Returns the named objects that stay, and the end of the promises that a purge breaks."""
    plan = found.plan
    if plan is None:
        return []
    facts: list[tuple[str, str]] = []
    if plan.kept_count:
        kept = f"{count_text(plan.kept_count, 'object')} ({size_text(plan.kept_bytes)})"
        facts.append(("kept", f"{kept}, which other data needs"))
    if plan.promised_until is not None:
        until = f"{date_text(plan.promised_until)} UTC"
        facts.append(("signed", f"some signatures and locators end at {until}, or with the purge"))
    return facts


def _versions(found: PurgeReport) -> str:
    """Returns what happens to the versions that the storage keeps of the objects, or ""."""
    plan = found.plan
    if plan is None or plan.retained is None or plan.retained.state != "versions":
        return ""
    return "deleted too" if found.row.request.get("delete_versions", False) else "stay"


def _ways_on(cli: Cli, row: PurgeRow) -> list[tuple[str, str]]:
    """Returns the commands that can be used on the purge next, as they are typed."""
    words = {"verify": "verify"} if row.state in ("done", "incomplete") else {}
    if row.state in ("planned", "deleting", "incomplete"):
        words["continue"] = "resume"
    return [
        (name, command_line(cli.context, ("purge", word), (row.purge_id,)))
        for name, word in words.items()
    ]


def _show_objects(cli: Cli, objects: list[dict[str, Any]]) -> None:
    cli.output.table(
        ["address", "size", "checksum", "paths"],
        [
            [
                each["address"],
                size_text(each["size_bytes"]),
                each["checksum"][:12],
                ", ".join(each["paths"][:3]) + (" …" if len(each["paths"]) > 3 else ""),
            ]
            for each in objects
        ],
        right=["size"],
        none="no objects",
    )


def _show_references(cli: Cli, found: PurgeReport, *, to_kept: bool = False) -> None:
    """Shows the references that prevent a purge, or those to objects that it keeps."""
    from ebbtide.purge.plan import KEPT_REFERENCES_FILE, REFERENCES_FILE

    plan = found.plan
    assert plan is not None
    references, counts, title, file_name = (
        (plan.kept_references, plan.kept_reference_counts, "needed by", KEPT_REFERENCES_FILE)
        if to_kept
        else (plan.references, plan.reference_counts, "blocked by", REFERENCES_FILE)
    )
    cli.output.table(
        [title, "id", "names", "entries", "first"],
        [
            [
                each.kind,
                each.id,
                ", ".join(each.names),
                count_text(each.entry_count),
                ", ".join(each.examples[:3]),
            ]
            for each in references
        ],
        right=["entries"],
    )
    more = sum(counts.values()) - len(references)
    if more:
        cli.output.line(f"and {more:,} more: {found.row.record_url}/{file_name} has all")
