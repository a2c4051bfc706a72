"""The JSON of usage and of the curve, and names in them, for the command line and the pages.

Not for: the figures themselves (`gc.usage`, `gc.curve`), and the layout of tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from ebbtide.durations import format_duration
from ebbtide.prices import price_json

if TYPE_CHECKING:
    from ebbtide.gc.curve import Curve, Point
    from ebbtide.gc.parts import Count
    from ebbtide.gc.usage import Usage
    from ebbtide.prices import Prices
    from ebbtide.retention.holders import Holder

TOP: Final = 20
"""The holders, and the sets of holders, that are shown by default."""
KINDS: Final = {
    "branch": "branch",
    "tag": "tag",
    "collection": "collection",
    "hold": "hold on",
    "lease": "",
    "future": "",
    "dangling": "",
    "protection": "",
}
"""The words before the name of a holder of each kind."""


def usage_json(found: Usage, prices: Prices | None, *, top: int = TOP) -> dict[str, Any]:
    """Returns the usage with its `top` largest holders and sets; the others are one line each."""
    shared, rest = found.shared[:top], found.shared[top:]
    holders, others = found.holders[:top], found.holders[top:]

    def month(size_bytes: int, classes: Mapping[str, int] | None = None) -> float | None:
        if prices is None:
            return None
        return prices.month_of(size_bytes) if classes is None else prices.month(classes)

    return {
        "repository": found.repository,
        "now": found.now.isoformat(),
        "grace_seconds": found.grace_seconds,
        "prices": price_json(prices),
        "listed": found.listed.to_json(),
        "money_month": month(0, found.classes),
        "holders": [
            {
                **_holder(each.holder),
                "alone": each.alone.to_json(),
                "in_all": each.in_all.to_json(),
                "alone_money_month": month(0, each.classes),
            }
            for each in holders
        ],
        "other_holders": {
            "holder_count": len(others),
            "alone": _sum([each.alone for each in others]).to_json(),
        },
        "together": [
            {
                "holders": [_holder(each) for each in one.named],
                "holder_count": one.holder_count,
                **one.count.to_json(),
            }
            for one in shared
        ],
        "other_sets": {
            "set_count": len(rest),
            **_sum([each.count for each in rest]).to_json(),
        },
        "unheld": {
            "would_be_deleted": found.deleted.to_json(),
            "younger_than_grace": found.young.to_json(),
            "own_files": found.system.to_json(),
            "foreign_files": found.foreign.to_json(),
            "money_month": month(0, found.deleted_classes),
        },
        "periods": [
            {"until": None if end is None else format_duration(end), **count.to_json()}
            for end, count in found.periods
        ],
        "quarantine": {
            **found.quarantine.to_json(),
            "money_month": month(found.quarantine.bytes_total),
        },
        "warnings": list(found.warnings),
    }


def _holder(holder: Holder) -> dict[str, Any]:
    return asdict(holder)


def _sum(counts: Sequence[Count]) -> Count:
    from ebbtide.gc.parts import Count

    return sum(counts, Count())


def curve_json(found: Curve, prices: Prices | None) -> dict[str, Any]:
    """Returns the curve with the present policy and all points."""
    return {
        "repository": found.repository,
        "now": found.now.isoformat(),
        "grace_seconds": found.grace_seconds,
        "rule": found.rule,
        "prices": price_json(prices),
        "listed": found.listed.to_json(),
        "present": _point(found, found.present, prices),
        "points": [_point(found, each, prices) for each in found.points],
        "warnings": list(found.warnings),
    }


def _point(found: Curve, point: Point, prices: Prices | None) -> dict[str, Any]:
    kept = found.listed - point.reclaimable
    count = point.reclaimable.objects
    return {
        "axis": point.axis,
        "label": point.label,
        "is_present": found.is_present(point),
        "policy": point.policy,
        "candidate_count": count,
        "candidate_bytes": point.reclaimable.bytes_total,
        "kept_count": kept.objects,
        "kept_bytes": kept.known_bytes,
        "active_count": point.active_count,
        "lost_count": point.lost_count,
        "regained_count": point.regained_count,
        "saves_month": None if prices is None else prices.month(point.classes),
        "keeps_month": None if prices is None else prices.month_of(kept.known_bytes),
        "sweep_cost": None if prices is None else prices.sweep(count, quarantine=False),
        "quarantine_cost": None if prices is None else prices.sweep(count, quarantine=True),
        "counts": {name: each.to_json() for name, each in point.counts.items()},
    }


def name_of(holder: Mapping[str, Any]) -> str:
    """Returns a holder for people: `branch main`."""
    named = f"{KINDS[holder['kind']]} {holder['name']}".strip()
    return f"{named} (in the trash)" if holder["in_trash"] else named


def periods_of(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the periods of a usage with their names."""
    start, rows = "0d", []
    for each in found:
        end = each["until"]
        rows.append((f"{start} to {end} old" if end else f"{start} old or older", each))
        start = end
    return rows
