"""Pages of what a look computes (`server.jobs`), because it needs a listing of the storage.

The curve of retention is a part of the policy's page: each point leads to the form with its period
or count. The usage has a page of its own. Not for: the figures (`gc.curve`, `gc.usage`), and the
comparison of policies (`policies`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from starlette.responses import Response

from ebbtide.api.looks import name_of, periods_of
from ebbtide.durations import parse_duration
from ebbtide.errors import InvalidInput
from ebbtide.gc.curve import Axis
from ebbtide.prices import Prices
from ebbtide.retention.policy import EVERY_BRANCH, Policy, parse_rule
from ebbtide.server.api.runs import steps_of
from ebbtide.server.job_files import Job
from ebbtide.server.jobs import Look, Order
from ebbtide.server.pages.charts import Bar, Plot, Scale, bars, over_lengths
from ebbtide.server.pages.html import link
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.text import count_text, size_text

pages = Pages()

Part = Literal["keep_within", "keep_last"]
PARTS: Final[Mapping[Axis, Part]] = {"period": "keep_within", "count": "keep_last"}
"""The part of a rule that changes along an axis, which is a parameter of the page."""
HEADINGS: Final[Mapping[Axis, str]] = {"period": "Keep within", "count": "Keep last"}


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the curve with the URL path of the form that it fills. `found` is its JSON."""

    found: Mapping[str, Any]
    url: str


@dataclass(frozen=True, slots=True)
class CurveAxis:
    """The points of one axis, the strictest first, and their charts."""

    heading: str
    points: Sequence[CurvePoint]
    plots: Sequence[Plot]


@pages.add("POST", "/repositories/{repository:segment}/policy/curve", Role.ADMIN)
def compute_curve(visit: Visit) -> Response:
    """Starts the computation of the curve."""
    look = start_look(visit, "curve", rule=visit.form("rule") or None)
    return visit.to("repositories", visit.collected.name, "policy", curve=look.look_id)


def start_look(
    visit: Visit, looks_at: Look, policies: Sequence[Policy] = (), rule: str | None = None
) -> Job:
    """Starts a look at the page's repository, in place of the visitor's last one."""
    here = visit.collected
    order = Order(
        directory=visit.store.directory,
        settings=visit.served.settings,
        repository=here.name,
        repository_id=here.key,
        options={"mode": "clean"},
        looks_at=looks_at,
        policies=tuple(policies),
        rule=rule,
    )
    return visit.served.jobs.look(order, owner=visit.key.access_key_id)


def shown_prices(look: Job) -> Prices | None:
    """Returns the prices whose currency the amounts of a look have; None if it had none."""
    prices = None if look.report is None else look.report["prices"]
    return None if prices is None else Prices(prices["currency"])


def curve_axes(look: Job, repository: str) -> list[CurveAxis]:
    """Returns both axes of a curve; none before its end."""
    return [] if look.report is None else [_axis(look, repository, axis) for axis in PARTS]


def _axis(look: Job, repository: str, axis: Axis) -> CurveAxis:
    assert look.report is not None
    present, rows = look.report["present"], look.report["points"]
    points = [
        CurvePoint(
            each,
            link(
                *("repositories", repository, "policy"),
                curve=look.look_id,
                rule=look.report["rule"],
                **{PARTS[axis]: each["label"]},
            ),
        )
        for each in rows
        if each["axis"] == axis
    ]
    # The sizes of kept files are unknown where the listing does not tell them.
    is_known = present["kept_bytes"] is not None
    of_bytes = ("Bytes kept", "kept_bytes") if is_known else ("Bytes deleted", "candidate_bytes")

    def plot(title: str, field: str, text: Callable[[float], str], scale: Scale) -> Plot:
        return over_lengths(
            f"{HEADINGS[axis]}: {title}",
            [(_length(each.found), each.found["label"], each.found[field]) for each in points],
            level=present[field],
            text=text,
            scale=scale,
        )

    plots = (
        plot(*of_bytes, lambda value: size_text(round(value)), "bytes"),
        plot("Restore points lost", "lost_count", lambda value: count_text(round(value)), "whole"),
    )
    return CurveAxis(HEADINGS[axis], points, plots)


def _length(point: Mapping[str, Any]) -> float:
    label = point["label"]
    return int(label) if point["axis"] == "count" else parse_duration(label).total_seconds()


def proposed_policy(visit: Visit, present: Policy | None) -> Policy | None:
    """Returns the present policy with the period or the count of a point, which the query has, in
    the rule for the pattern that it has too. Returns None if the query has neither.

    Raises InvalidInput `invalid_policy`, `invalid_duration`.
    """
    policy = present or Policy()
    pattern = visit.query("rule") or EVERY_BRANCH
    old = policy.rule_of(pattern)
    period, count = visit.query("keep_within"), visit.query("keep_last")
    if period:
        given = parse_rule({"keep_within": period}, key="default")
        return policy.with_rule(pattern, replace(old, keep_within=given.keep_within))
    if not count:
        return None
    if not (count.isascii() and count.isdigit() and len(count) < 16):
        raise InvalidInput("invalid_policy", "keep_last in the address is not a count")
    given = parse_rule({"keep_last": int(count)}, key="default")
    return policy.with_rule(pattern, replace(old, keep_within=None, keep_last=given.keep_last))


_USAGE: Final = "/repositories/{repository:segment}/usage"


@pages.add("GET", _USAGE, Role.READER)
def show_usage(visit: Visit) -> Response:
    """Shows the newest usage that this server computed, and the progress of one that it computes
    now."""
    here = visit.collected
    looks = visit.served.jobs.looks(here.key, "usage")
    running = next((each for each in looks if not each.ended), None)
    steps = [] if running is None else steps_of(running)
    if visit.request.headers.get("accept") == "application/json":
        html = visit.render("steps.html", steps=steps, running=True)
        return visit.json({"ended": running is None, "html": html})
    ended = next((each for each in looks if each.report is not None), None)
    failed = next((each for each in looks[:1] if each.error is not None), None)
    return visit.page(
        "usage.html",
        name=here.name,
        running=running,
        steps=steps,
        failed=failed,
        found=None if ended is None else ended.report,
        prices=None if ended is None else shown_prices(ended),
        holder_name=name_of,
        periods=[] if ended is None or ended.report is None else _period_bars(ended.report),
    )


@pages.add("POST", _USAGE, Role.ADMIN)
def compute_usage(visit: Visit) -> Response:
    """Starts the computation of the usage."""
    start_look(visit, "usage")
    return visit.to("repositories", visit.collected.name, "usage")


def _period_bars(found: Mapping[str, Any]) -> list[Bar]:
    return bars(
        (label, each["objects"], each["bytes_total"])
        for label, each in periods_of(found["periods"])
    )
