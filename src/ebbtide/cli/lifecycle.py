"""What commands on everything with a lifecycle have in common: options, and what they say."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ebbtide.cli.text import age_text, date_text, parse_date
from ebbtide.durations import parse_duration
from ebbtide.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from ebbtide.cli.command import Cli

ExpiredOption = Annotated[
    bool, typer.Option("--include-expired", help="Show those in the trash too, with their ids.")
]
UniqueOption = Annotated[
    bool,
    typer.Option(
        "--ensure-unique-name",
        help="Where the name was taken since, make one up: NAME-2, NAME-3, …",
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


def warn_of_expiry(cli: Cli, repository: str, *expressions: str) -> None:
    """Say on a terminal that what is read there will not be there for long: each branch or tag
    that an expression begins with, and the repository."""
    if cli.output.as_json or not sys.stderr.isatty():
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
