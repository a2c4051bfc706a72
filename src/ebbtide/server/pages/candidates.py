"""The candidates of a run: the list with a search, and the charts."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.errors import InvalidInput
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.gc.plan import Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.server.pages.candidate_reading import CandidateFilter, CandidatePage, find
from ebbtide.server.pages.last_holders import OBJECT, LastPaths, find_last_paths
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.repository import Repository
from ebbtide.text import shown, size_text

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
    own = None if is_elsewhere(visit.collected.name) else visit.repository()
    with_paths = visit.query("paths") == "yes"
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
        can_show_paths=own is not None,
        paths=_paths(own, plan, folder, found) if own and with_paths else None,
    )


def _paths(
    repository: Repository, plan: Plan, folder: RunFolder, found: CandidatePage
) -> LastPaths:
    """Returns where the objects of a page were last."""
    addresses = [row.address for row in found.rows if row.kind == OBJECT]
    return find_last_paths(repository, plan, folder, addresses)


@pages.add("GET", _RUN + "/charts", Role.READER)
def show_charts(visit: Visit) -> Response:
    """Shows the charts of a run. The page of the run requests them after it has loaded, because
    they need all parts."""
    plan, folder = _plan(visit)
    own = None if is_elsewhere(visit.collected.name) else visit.repository()
    charts = visit.charts.of(own, plan, folder)
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
