"""What commands on everything with a lifecycle have in common: options, and what they say."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from ebbtide.cli.text import age_text, date_text, parse_date
from ebbtide.durations import parse_duration
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.retention.lifecycle import LifecycleState

if TYPE_CHECKING:
    from ebbtide.cli.command import Cli
    from ebbtide.store.changes import Keep

ExpiredOption = Annotated[
    bool, typer.Option("--include-expired", help="Show those in the trash too, with their ids.")
]
UniqueOption = Annotated[
    bool,
    typer.Option(
        "--ensure-unique-name",
        help="Where the name is taken, make one up from it.",
    ),
]
ExpiresInOption = Annotated[
    str | None,
    typer.Option(
        "--expires-in",
        metavar="PERIOD",
        help="It goes to the trash by itself after so long, such as 3d.",
        show_default=False,
    ),
]
ExpiresAtOption = Annotated[
    str | None,
    typer.Option(
        "--expires-at",
        metavar="DATE",
        help="It goes to the trash by itself then; as 2027-01-01T00:00:00Z.",
        show_default=False,
    ),
]
InOption = Annotated[
    str | None,
    typer.Option(
        "--in", metavar="PERIOD", help="After so long from now, such as 3d.", show_default=False
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="DATE", help="Then; as 2027-01-01T00:00:00Z.", show_default=False),
]
NeverOption = Annotated[bool, typer.Option("--never", help="It stays until it is deleted.")]

StateOption = Annotated[
    Literal["persistent", "expiring", "trashed"] | None,
    typer.Option(
        "--state",
        help="Only those in this state; 'trashed' looks in the trash.",
        show_default=False,
    ),
]
AfterOption = Annotated[
    str | None,
    typer.Option("--expires-after", metavar="DATE", help="Only those that expire then or later."),
]
BeforeOption = Annotated[
    str | None,
    typer.Option("--expires-before", metavar="DATE", help="Only those that expire before then."),
]

LAST: Final = datetime.max.replace(tzinfo=UTC)


def expiry_given(
    cli: Cli, period: str | None, date: str | None, *, options: str
) -> datetime | None:
    """When something is to expire, by a period from the store's now or by a date; None where
    neither is given. InvalidInput `invalid_argument` for both."""
    if period is not None and date is not None:
        raise InvalidInput("invalid_argument", f"give one of {options}, not both")
    if period is None:
        return None if date is None else parse_date(date)
    with cli.store.metadata.snapshot() as tx:
        now = tx.now()
    return _later(now, parse_duration(period))


def _later(now: datetime, by: timedelta) -> datetime:
    return LAST if LAST - now < by else now + by


def expiry_changed(
    cli: Cli, period: str | None, date: str | None, *, never: bool
) -> datetime | None:
    """What `--in`, `--at` and `--never` say, of which one must be given; None is never."""
    options = "--in PERIOD, --at DATE or --never"
    if (period is not None) + (date is not None) + never != 1:
        raise InvalidInput("invalid_argument", f"say when: give one of {options}")
    return expiry_given(cli, period, date, options=options)


def expiry_updated(
    cli: Cli, period: str | None, date: str | None, *, never: bool
) -> datetime | Keep | None:
    """What `--expires-in`, `--expires-at` and `--never` say, of which one may be given; without
    any it stays as it is."""
    from ebbtide.store.changes import KEEP

    options = "--expires-in PERIOD, --expires-at DATE or --never"
    if period is None and date is None:
        return None if never else KEEP
    if never:
        raise InvalidInput("invalid_argument", f"give one of {options}")
    return expiry_given(cli, period, date, options=options)


def may_delete(cli: Cli, what: str, *, yes: bool) -> bool:
    """Asks only where there is no trash, so that nothing could bring it back."""
    if cli.store.settings.trash_time:
        return True
    return cli.may(f"the trash time is zero: delete {what} for good?", yes=yes)


def deleted_text(cli: Cli, what: str, restore: str) -> str:
    """What is said of something that was put in the trash; `restore` brings it back."""
    trash_time = cli.store.settings.trash_time
    if not trash_time:
        return f"{what} deleted"
    return f"{what} deleted; for {age_text(trash_time)} 'ebbtide {restore}' brings it back"


def expiry_text(expires_at: datetime | None) -> str:
    """What is said of a new date."""
    if expires_at is None:
        return "stays until it is deleted"
    return f"goes to the trash at {date_text(expires_at)} UTC"


def changed_text(what: str, state: LifecycleState, ends_at: datetime | None) -> str:
    """What is said of something that was changed."""
    if state is LifecycleState.TRASHED:
        return f"{what} changed; it is in the trash"
    return f"{what} changed" if ends_at is None else f"{what} changed; it {expiry_text(ends_at)}"


def at_terminal() -> bool:
    """Whether somebody reads what is said on stderr."""
    return sys.stderr.isatty()


def warn_of_expiry(cli: Cli, repository: str, *expressions: str) -> None:
    """Say on a terminal that what is read there will not be there for long: each branch or tag
    that an expression begins with, and the repository."""
    if cli.output.as_json or not at_terminal():
        return
    found = cli.repository(repository)
    ending = [(f"repository {found.info.name}", found.info.expires_at)]
    for expression in expressions:
        # What stands before the steps of a revision is a name, or the id of a commit.
        name = re.split("[@~^]", expression, maxsplit=1)[0]
        for refs in (found.branches, found.tags):
            with suppress(NotFound):
                ending.append((f"{refs.kind} {name}", refs.get(name).expires_at))
    for what, expires_at in ending:
        if expires_at is not None:
            cli.output.warn(f"{what} {expiry_text(expires_at)}")


def warn_of_end(cli: Cli, what: str, ends_at: datetime | None) -> None:
    """Say on a terminal that what is read there will not be there for long."""
    if ends_at is None or cli.output.as_json or not at_terminal():
        return
    left = ends_at - datetime.now(UTC)
    if left > timedelta():
        cli.output.warn(f"{what} {expiry_text(ends_at)}, in {age_text(left)}")
