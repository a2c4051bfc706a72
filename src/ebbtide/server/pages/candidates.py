"""The candidates of a run: the list with a search, and the charts by age and place.

There may be millions of candidates. They are read part by part, and only as many parts as a page
needs. A search stops after SCANNED_MAX rows, and says where it continues.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from ebbtide.arrow import counts, instants, texts
from ebbtide.audit.candidate_names import names_of_candidates
from ebbtide.errors import InvalidInput
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.plan import Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import instant_of
from ebbtide.model import EPOCH
from ebbtide.server.pages.charts import Bar, bars
from ebbtide.server.pages.last_holders import (
    LastHolders,
    find_last_holders,
)
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.repository import Repository
from ebbtide.text import count_text, shown, size_text

pages = Pages()

PAGE_ROWS: Final = 100
POSITION_MAX: Final = 10**12
DIGITS_MAX: Final = 15
_RUN: Final = "/repositories/{repository:segment}/runs/{run_id:segment}"


@pages.add("GET", _RUN + "/candidates", Role.READER)
def list_candidates(visit: Visit) -> Response:
    """Shows a page of the candidates that match a search."""
    plan, folder = _plan(visit)
    search = CandidateFilter(
        visit.query("search"), visit.query("kind"), _parse_size(visit.query("bytes_min"))
    )
    position = visit.number("position", 0, most=POSITION_MAX)
    found = find(folder, plan.candidates, search, position=position, amount=PAGE_ROWS)
    addresses = [row.address for row in found.rows]
    return visit.page(
        "candidates.html",
        name=visit.collected.name,
        run_id=plan.run_id,
        found=found,
        position=position,
        search=search,
        bytes_min=visit.query("bytes_min"),
        total=sum(part.rows for part in plan.candidates),
        bytes_total=sum(part.bytes_total for part in plan.candidates),
        kinds=sorted({part.kind for part in plan.candidates}),
        started_at=plan.started_at,
        names=names_of_candidates(visit.collected.form, plan, folder, addresses),
        has_commits=not is_elsewhere(visit.collected.name),
        addresses=visit.query("addresses") == "yes",
    )


@pages.add("GET", _RUN + "/charts", Role.READER)
def show_charts(visit: Visit) -> Response:
    """Shows the charts of a run. The page of the run requests them after it has loaded, because
    they need all parts."""
    plan, folder = _plan(visit)
    own = None if is_elsewhere(visit.collected.name) else visit.repository()
    charts = ChartsKept.of_server(visit).of(plan, folder, own)
    is_fragment = "x-fragment" in visit.request.headers
    template = "charts.html" if is_fragment else "charts_page.html"
    return visit.page(template, charts=charts, plan=plan)


def _plan(visit: Visit) -> tuple[Plan, RunFolder]:
    """Returns the plan of the run in the path, and the run's folder. Raises NotFound
    `run_not_found`, and Refused if the plan is damaged."""
    found, run_id = visit.collected, visit.segment("run_id")
    collector = found.collector()
    return collector.plan_of(run_id), collector.folder_of(run_id)


_UNITS: Final = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def _parse_size(text: str) -> int:
    """Parses a size such as `500` or `1 MiB`. Raises InvalidInput `invalid_argument`."""
    compact = text.replace(" ", "").upper()
    number = compact.rstrip("BIKMGT")
    unit = _UNITS.get(compact.removeprefix(number))
    is_number = number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX
    if compact and (unit is None or not is_number):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(text)} is not a size: write bytes, or a size such as {size_text(2**20)!r}",
        )
    return int(number) * unit if compact and unit else 0


SCANNED_MAX: Final = 2_000_000
"""How many rows one search reads before it stops and says where it continues."""
PLACES_SHOWN: Final = 12
CHARTS_KEPT: Final = 200
AGES: Final = (
    ("under a day", timedelta(days=1)),
    ("1 to 7 days", timedelta(days=7)),
    ("7 to 30 days", timedelta(days=30)),
    ("30 to 90 days", timedelta(days=90)),
    ("90 days to a year", timedelta(days=365)),
    ("over a year", timedelta.max),
)
_COLUMNS: Final = ("address", "size_bytes", "last_modified", "kind")


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate: a file that the plan may delete."""

    address: str
    size_bytes: int
    last_modified: datetime
    kind: str


@dataclass(frozen=True, slots=True)
class CandidateFilter:
    """The filter of a list: addresses that contain `text`, files of one kind, files of at least
    `bytes_min` bytes."""

    text: str = ""
    kind: str = ""
    bytes_min: int = 0

    def of(self, table: pa.Table) -> np.ndarray[Any, np.dtype[np.intp]]:
        """Returns the positions of a table's rows that match, ascending."""
        fits = np.ones(table.num_rows, dtype=bool)
        if self.text:
            found = pc.match_substring(table.column("address"), self.text)
            fits &= np.asarray(found)
        if self.kind:
            wanted = pa.scalar(self.kind, pa.string())
            fits &= np.asarray(pc.equal(table.column("kind"), wanted))
        if self.bytes_min:
            fits &= np.asarray(table.column("size_bytes")) >= self.bytes_min
        return np.flatnonzero(fits)


@dataclass(frozen=True, slots=True)
class CandidatePage:
    """A page of candidates. If the list continues, it does so at position `next_position`.
    `scanned` is the number of rows that were read for the page."""

    rows: Sequence[CandidateRow]
    next_position: int | None
    scanned: int


@dataclass(frozen=True, slots=True)
class Charts:
    """The candidates of a plan by age, by place, and by kind. `held` has the objects by the branch
    that held them last, if that is known."""

    ages: Sequence[Bar]
    places: Sequence[Bar]
    kinds: Sequence[Bar]
    held: LastHolders | None = None


class ChartsKept:
    """A cache with the charts of the plans that were viewed last. A plan never changes.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, str], Charts] = OrderedDict()

    @classmethod
    def of_server(cls, visit: Visit) -> Self:
        """Returns the cache of the server."""
        return cast("Self", visit.request.app.state.charts)

    def of(self, plan: Plan, folder: RunFolder, own: Repository | None) -> Charts:
        """Returns the charts of a plan. `own` is the repository, or None for one elsewhere, whose
        charts do not show branches. Raises Refused `plan_corrupt`."""
        key = (plan.identity.repository_id, plan.run_id)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        charts = draw(folder, plan.candidates, now=plan.started_at)
        if own is not None:
            form = EmbeddedRepository(own.context, store_id=plan.identity.store_id)
            branch = own.info.default_branch
            held = find_last_holders(form, plan, folder, default_branch=branch)
            charts = replace(charts, held=held)
        with self._lock:
            self._kept[key] = charts
            while len(self._kept) > CHARTS_KEPT:
                self._kept.popitem(last=False)
        return charts


def find(
    folder: RunFolder, parts: Sequence[Part], search: CandidateFilter, *, position: int, amount: int
) -> CandidatePage:
    """Returns at most `amount` matching candidates, beginning at a position among all candidates.

    Parts before the position, and parts of another kind, are not read. Raises Refused
    `plan_corrupt`.
    """
    rows: list[CandidateRow] = []
    begin, scanned = 0, 0
    for part in parts:
        end = begin + part.rows
        if end <= position or (search.kind and part.kind != search.kind):
            begin = end
            continue
        if scanned >= SCANNED_MAX:
            return CandidatePage(rows, max(begin, position), scanned)
        table = _read(folder, part)
        places = search.of(table)
        places = places[places >= position - begin]
        taken = places[: amount - len(rows)]
        rows += _candidates(table.take(taken))
        scanned += part.rows
        if len(rows) == amount:
            last = begin + int(taken[-1]) + 1
            is_end = len(taken) == len(places) and part is parts[-1]
            return CandidatePage(rows, None if is_end else last, scanned)
        begin = end
    return CandidatePage(rows, None, scanned)


def draw(folder: RunFolder, parts: Sequence[Part], *, now: datetime) -> Charts:
    """Returns the charts of all candidates. Raises Refused `plan_corrupt`."""
    ages = [[0, 0] for _ in AGES]
    places: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    kind_sizes: Counter[str] = Counter()
    limits = np.array([period / timedelta(microseconds=1) for _, period in AGES[:-1]])
    for part in parts:
        table = _read(folder, part)
        size = np.asarray(table.column("size_bytes")).astype(np.int64)
        modified = np.asarray(table.column("last_modified").cast(pa.int64()))
        age = (now - EPOCH) // timedelta(microseconds=1) - modified
        bucket = np.searchsorted(limits, age, side="right")
        for number in range(len(AGES)):
            fits = bucket == number
            ages[number][0] += int(fits.sum())
            ages[number][1] += int(size[fits].sum())
        for place, count, total in _by_place(table):
            places[place] += count
            sizes[place] += total
        kinds[part.kind] += part.rows
        kind_sizes[part.kind] += part.bytes_total
    return Charts(
        bars((name, count, size) for (name, _), (count, size) in zip(AGES, ages, strict=True)),
        bars(_largest(places, sizes)),
        bars((kind, kinds[kind], size) for kind, size in kind_sizes.most_common()),
    )


def _by_place(table: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Yields each directory, two levels deep, with its number of rows and of bytes."""
    address = table.column("address")
    matched = pc.extract_regex(address, r"^(?P<place>[^/]*/[^/]*/|[^/]*/|)")
    named = pa.table(
        {"place": pc.struct_field(matched, "place"), "size_bytes": table.column("size_bytes")}
    )
    summed = named.group_by("place", use_threads=False).aggregate(
        [("size_bytes", "count"), ("size_bytes", "sum")]
    )
    yield from zip(
        texts(summed.column("place")),
        counts(summed.column("size_bytes_count")),
        counts(summed.column("size_bytes_sum")),
        strict=True,
    )


def _largest(places: Counter[str], sizes: Counter[str]) -> list[tuple[str, int, int]]:
    """Returns the places with the most bytes, and one row for all other places together."""
    most = sizes.most_common(PLACES_SHOWN)
    rows = [(_place_text(place), places[place], size) for place, size in most]
    shown = {place for place, _ in most}
    others = [place for place in sizes if place not in shown]
    if others:
        total = sum(sizes[place] for place in others)
        count = sum(places[place] for place in others)
        rows.append((count_text(len(others), "other"), count, total))
    return rows


def _place_text(place: str) -> str:
    """Returns the label of a place: the hour in which a slice of objects was opened; any other
    place as it is."""
    opened_at = instant_of(place.removeprefix("data/").rstrip("/"))
    if place.startswith("data/") and opened_at is not None:
        return f"data, written from {opened_at:%Y-%m-%d %H:%M}"
    return place or "(top)"


def _read(folder: RunFolder, part: Part) -> pa.Table:
    return read_part(folder, part.name, part.checksum, columns=_COLUMNS)


def _candidates(table: pa.Table) -> list[CandidateRow]:
    rows = zip(
        texts(table.column("address")),
        counts(table.column("size_bytes")),
        instants(table.column("last_modified")),
        texts(table.column("kind")),
        strict=True,
    )
    return [CandidateRow(*row) for row in rows]
