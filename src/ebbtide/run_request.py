"""The options that a person may give a run, each declared once.

A class is what one way of asking takes: its keys are the names, and each has its type, its help and
how a text is read. The command line (`cli.command`), the server's API (`server.api.options`),
its forms, the schedules and the Python interface are made from these classes. Not
for: the values that a run works with (`gc.options.RunOptions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Literal, TypedDict, cast, get_args, get_origin, get_type_hints

from ebbtide.durations import parse_duration, parse_period
from ebbtide.errors import InvalidInput
from ebbtide.retention.dates import DATE_FORMS, parse_date
from ebbtide.text import shown

Mode = Literal["auto", "clean", "incremental"]
Sizes = Literal["auto", "all", "candidates"]
Period = str | timedelta
"""A period: `timedelta`, or a text such as `"7d"`, `"12h"` or `"0s"`."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a run.

    `help` says what it does, and `otherwise` what `ebbtide` does without it. `metavar` names its
    value; a flag has none. `read` makes a value from a text. `name`, `choices` and `is_flag` come
    from the key and its type: `choices` are the only values, if there are few.
    """

    help: str
    metavar: str | None = None
    otherwise: str = ""
    default: str | bool | None = None
    read: Callable[[str], object] = str
    name: str = ""
    choices: tuple[str, ...] = ()
    is_flag: bool = False

    def parse(self, value: object) -> object:
        """Returns the value for a run, from a text or another value. Raises InvalidInput
        `invalid_argument`, `invalid_duration` or `invalid_date`."""
        if self.choices and value not in self.choices:
            told = f"{shown(str(value))} is no value for {self.name}"
            raise InvalidInput("invalid_argument", f"{told}: write {', '.join(self.choices)}")
        return self.read(value) if isinstance(value, str) else value


class GateOptions(TypedDict, total=False):
    """What a plan and its sweep check, or let pass."""

    grace: Annotated[
        Period | None,
        Option(
            "Minimum age of candidates.",
            "PERIOD",
            "EBBTIDE_GRACE, for Icechunk EBBTIDE_ICECHUNK_GRACE, for Iceberg EBBTIDE_ICEBERG_GRACE,"
            " for Delta EBBTIDE_DELTA_GRACE",
            read=parse_duration,
        ),
    ]
    unsafe: Annotated[bool, Option("Allow a shorter grace than leases, clocks or sessions need.")]
    allow_share: Annotated[
        bool, Option("Allow deleting more than EBBTIDE_SHARE_MAX of the files or bytes.")
    ]


class LossOptions(TypedDict, total=False):
    """Which losses a plan accepts. No schedule has them: each later run would accept losses too."""

    accept_lost_commits: Annotated[
        bool,
        Option(
            "Plan although the metadata lack commits that an earlier run knew. Their data can "
            "then be deleted."
        ),
    ]


class ReadingOptions(TypedDict, total=False):
    """Which files a plan looks at."""

    mode: Annotated[
        Mode,
        Option(
            "clean: look at all files; incremental: look at changes since the last run that was "
            "swept; auto: incremental if possible.",
            "MODE",
            default="auto",
        ),
    ]
    sizes: Annotated[
        Sizes | None,
        Option(
            "Files whose size and date a run reads in a directory. all: all files; candidates: "
            "only candidates, which lists large stores several times as fast; auto: all, up to a "
            "million files.",
            "FILES",
            "EBBTIDE_SIZES",
        ),
    ]


class InventoryOptions(TypedDict, total=False):
    """An inventory that a plan reads in place of a listing."""

    inventory: Annotated[
        str | None,
        Option(
            "Path or URL of an inventory to use instead of a listing: a manifest.json of S3, a "
            "Parquet file, or a directory of Parquet files. Files newer than the inventory are "
            "kept.",
            "PLACE",
        ),
    ]
    inventory_date: Annotated[
        datetime | None,
        Option(
            f"Date at which the inventory began: {DATE_FORMS}. A manifest.json contains it.",
            "DATE",
            read=parse_date,
        ),
    ]


class PlanOptions(GateOptions, LossOptions, ReadingOptions, InventoryOptions, total=False):
    """The options of a plan."""


class SweepOptions(GateOptions, total=False):
    """The options of a sweep."""

    quarantine: Annotated[
        Period | None,
        Option(
            "Keep the files in quarantine for this period, so that 'gc undo' can restore them. "
            "none: delete at once.",
            "PERIOD",
            "7d, also with --yes",
            read=parse_period,
        ),
    ]


class PlanAndSweepOptions(PlanOptions, SweepOptions, total=False):
    """The options of a run."""


class RunRequest(PlanAndSweepOptions, total=False):
    """All that can be asked of a run. What is absent, None or False is as the settings say."""

    run_dir: Annotated[
        str | None,
        Option("Directory or URL for the run's files.", "DIR", "the repository's own storage"),
    ]
    delete_versions: Annotated[
        bool,
        Option(
            "S3: delete the versions that the bucket keeps of these files too, at the end of the "
            "quarantine. Nothing can undo this.",
            otherwise="EBBTIDE_DELETE_VERSIONS",
        ),
    ]


class ScheduledOptions(SweepOptions, ReadingOptions, total=False):
    """The options of the runs of a schedule."""

    dry_run: Annotated[bool, Option("Only plan, and delete nothing.")]


class ServedOptions(ScheduledOptions, LossOptions, total=False):
    """The options of a run that a server starts for a person."""


@cache
def options_of(asked: type) -> Mapping[str, Option]:
    """Returns the options of one of these classes, by their names."""
    hints = get_type_hints(asked, include_extras=True)
    found = {name: get_args(hint) for name, hint in hints.items()}
    return {
        name: _declared(name, kind, option)
        for name, (kind, option) in found.items()
        if isinstance(option, Option)
    }


def _declared(name: str, kind: Any, option: Option) -> Option:  # Any: a type, or a union of types
    literal = (get_args(each) for each in (kind, *get_args(kind)) if get_origin(each) is Literal)
    if kind is bool:
        return replace(option, name=name, default=False, is_flag=True)
    return replace(option, name=name, choices=next(literal, ()))


def parsed(request: RunRequest) -> dict[str, Any]:
    """Returns the values for a run of the options that a request has. Raises as `Option.parse`, and
    TypeError for a name that is no option."""
    require_known(request, RunRequest)
    options = options_of(RunRequest)
    asked = {name: value for name, value in request.items() if value not in (None, False)}
    return {name: options[name].parse(value) for name, value in asked.items()}


def require_known(given: Mapping[str, object], asked: type) -> None:
    """Raises TypeError for a name that is no option of the class."""
    unknown = ", ".join(given.keys() - options_of(asked).keys())
    if unknown:
        raise TypeError(f"no option of this name: {unknown}")


def completed(scheduled: Mapping[str, object]) -> ScheduledOptions:
    """Returns the options of a schedule, with the defaults of those that are absent."""
    defaults = {name: option.default for name, option in options_of(ScheduledOptions).items()}
    return cast("ScheduledOptions", {**defaults, **scheduled})


def request_of(options: Mapping[str, object]) -> RunRequest:
    """Returns what options ask of the collector. Others, such as `dry_run`, say what to do."""
    known = options_of(RunRequest)
    return cast("RunRequest", {name: each for name, each in options.items() if name in known})
