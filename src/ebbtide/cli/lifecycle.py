"""Options and texts for commands on objects with a lifecycle: refs, collections, projects and
repositories."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ebbtide.cli.values import WHEN_FORMS, later, parse_when
from ebbtide.durations import parse_period
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.retention.dates import DATE_FORMS, parse_date
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.text import age_text, date_text

if TYPE_CHECKING:
    from ebbtide.cli.command import Cli
    from ebbtide.store.collections.items import Keep
    from ebbtide.store.lifecycle import ListFilter

ExpiredOption = Annotated[
    bool, typer.Option("--include-expired", help="Also show the content of the trash, with ids.")
]
UniqueOption = Annotated[
    bool,
    typer.Option(
        "--ensure-unique-name",
        help="If the name is taken, derive another one from it.",
    ),
]
ExpiresInOption = Annotated[
    str | None,
    typer.Option(
        "--expires-in",
        metavar="PERIOD",
        help="Period after which it goes to the trash by itself, such as 3d.",
    ),
]
ExpiresAtOption = Annotated[
    str | None,
    typer.Option(
        "--expires-at",
        metavar="DATE",
        help=f"Date at which it goes to the trash by itself: {DATE_FORMS}.",
    ),
]
InOption = Annotated[
    str | None,
    typer.Option("--in", metavar="PERIOD", help="Period from now, such as 3d."),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="DATE", help=f"Date: {DATE_FORMS}."),
]
NeverOption = Annotated[bool, typer.Option("--never", help="No date: it stays until deleted.")]

StateOption = Annotated[
    Literal["persistent", "expiring", "trashed"] | None,
    typer.Option(
        "--state",
        help="List only items in this state; 'trashed' lists the content of the trash.",
    ),
]
AfterOption = Annotated[
    str | None,
    typer.Option(
        "--expires-after",
        metavar="WHEN",
        help=f"List only items that expire at this date or later. {WHEN_FORMS}",
    ),
]
BeforeOption = Annotated[
    str | None,
    typer.Option(
        "--expires-before",
        metavar="WHEN",
        help=f"List only items that expire before this date. {WHEN_FORMS}",
    ),
]


def expiry_given(
    cli: Cli, period: str | None, date: str | None, *, options: str
) -> datetime | None:
    """Returns the date of expiry, from a period after the store's present time or from a date.

    None if neither is given. Raises InvalidInput `invalid_argument` if both are given.
    """
    if period is not None and date is not None:
        raise InvalidInput("invalid_argument", f"give one of {options}, not both")
    if period is None:
        return None if date is None else parse_date(date)
    with cli.store.metadata.snapshot() as tx:
        now = tx.now()
    return later(now, parse_period(period))


def filter_of(
    cli: Cli, *, include_expired: bool, state: str | None, after: str | None, before: str | None
) -> ListFilter:
    """Returns the filter of a list. The state `trashed` includes the content of the trash."""
    from ebbtide.store.lifecycle import ListFilter

    wanted: LifecycleState | None = None if state is None else LifecycleState(state)
    dates: list[datetime | None] = [None, None]
    if after is not None or before is not None:
        with cli.store.metadata.snapshot() as tx:
            now = tx.now()
        dates = [None if text is None else parse_when(text, now) for text in (after, before)]
    return ListFilter(
        include_expired=include_expired or wanted is LifecycleState.TRASHED,
        state=wanted,
        expires_after=dates[0],
        expires_before=dates[1],
    )


def expiry_changed(
    cli: Cli, period: str | None, date: str | None, *, never: bool
) -> datetime | None:
    """Returns the date of `--in`, `--at` or `--never`. Exactly one must be given. None means
    never."""
    options = "--in PERIOD, --at DATE or --never"
    if (period is not None) + (date is not None) + never != 1:
        raise InvalidInput("invalid_argument", f"say when: give one of {options}")
    return expiry_given(cli, period, date, options=options)


def expiry_updated(
    cli: Cli, period: str | None, date: str | None, *, never: bool
) -> datetime | Keep | None:
    """Returns the date of `--expires-in`, `--expires-at` or `--never`. At most one may be given.

    None means never. Without any of them, KEEP: the date stays as it is.
    """
    from ebbtide.store.collections.items import KEEP

    options = "--expires-in PERIOD, --expires-at DATE or --never"
    if period is None and date is None:
        return None if never else KEEP
    if never:
        raise InvalidInput("invalid_argument", f"give one of {options}")
    return expiry_given(cli, period, date, options=options)


def may_delete(cli: Cli, what: str, *, yes: bool) -> bool:
    """Whether a deletion may proceed. Asks only if the trash time is zero, because a deletion then
    cannot be undone."""
    if cli.store.settings.trash_time:
        return True
    return cli.may(f"the trash time is zero: delete {what} for good?", yes=yes)


def deleted_text(cli: Cli, what: str, restore: str) -> str:
    """Returns the text after a deletion. `restore` is the command that restores it from the
    trash."""
    trash_time = cli.store.settings.trash_time
    if not trash_time:
        return f"{what} deleted"
    return f"{what} deleted; for {age_text(trash_time)} 'ebbtide {restore}' restores it"


def expiry_text(expires_at: datetime | None) -> str:
    """Returns the text about a date of expiry."""
    if expires_at is None:
        return "stays until it is deleted"
    return f"goes to the trash at {date_text(expires_at)} UTC"


def changed_text(what: str, state: LifecycleState, ends_at: datetime | None) -> str:
    """Returns the text after a change."""
    if state is LifecycleState.TRASHED:
        return f"{what} changed; it is in the trash"
    return f"{what} changed" if ends_at is None else f"{what} changed; it {expiry_text(ends_at)}"


def at_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


def warn_of_expiry(cli: Cli, repository: str, *expressions: str) -> None:
    """Warns on a terminal if the repository will expire. Also warns if a branch or tag at the
    beginning of an expression will expire."""
    if cli.output.as_json or not at_terminal():
        return
    found = cli.repository(repository)
    ending = [(f"repository {found.info.name}", found.info.expires_at)]
    for expression in expressions:
        # A revision begins with a name or the id of a commit, and steps follow.
        name = re.split("[@~^]", expression, maxsplit=1)[0]
        for refs in (found.branches, found.tags):
            with suppress(NotFound):
                ending.append((f"{refs.kind} {name}", refs.get(name).expires_at))
    for what, expires_at in ending:
        if expires_at is not None:
            cli.output.warn(f"{what} {expiry_text(expires_at)}")


def warn_of_end(cli: Cli, what: str, ends_at: datetime | None) -> None:
    """Warns on a terminal if a collection or project will expire."""
    if ends_at is None or cli.output.as_json or not at_terminal():
        return
    left = ends_at - datetime.now(UTC)
    if left > timedelta():
        cli.output.warn(f"{what} {expiry_text(ends_at)}, in {age_text(left)}")
