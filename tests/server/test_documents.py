"""What the documents say of the server is so."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ebbtide.notify import FAMILIES, OUTCOME
from ebbtide.run_request import completed
from ebbtide.server.metrics import Metrics
from ebbtide.store.schedules import Schedule
from tests.server.pages.test_sessions import PAGES
from tests.server.test_roles import DOCUMENTS, ROLES, R
from tests.support.documents import with_whole_items

_NOW = datetime(2030, 1, 1, tzinfo=UTC)
SCHEDULE = Schedule(
    repository_key="k",
    repository="lake",
    cron="0 3 * * *",
    timezone="UTC",
    jitter_seconds=0,
    options=completed({}),
    set_by="me",
    set_at=_NOW,
    next_due_at=_NOW,
    last_due_at=_NOW,
    last_started_at=_NOW,
)


def test_the_list_of_metrics() -> None:
    text = with_whole_items(DOCUMENTS / "monitoring.md")
    rows = re.findall(r"^- `(\w+)` (\w+)(?: (`.+?`))?: (.+)$", text, re.MULTILINE)
    metrics = Metrics()
    metrics.requests.labels("GET", "/", "200").inc()
    metrics.seconds.labels("GET", "/").observe(1)
    metrics.show_schedules([SCHEDULE])
    found = []
    for family in metrics.registry.collect():
        labels = [name for name in family.samples[0].labels if name != "le"]
        suffix = "_total" if family.type == "counter" else ""
        told = ", ".join(f"`{name}`" for name in labels)
        found.append((family.name + suffix, family.type, told, family.documentation))
    for name, text in FAMILIES.items():
        told = "`repository`, `outcome`" if name == OUTCOME else "`repository`"
        found.append((name, "gauge", told, text))
    assert sorted(rows) == sorted(found)


def test_routes_that_documents_name() -> None:
    """Each is one of the server's. `R` is a repository; … stands for what was said before. The page
    of lakeFS's operations has a test of its own."""
    known = set(ROLES) | {(method, f"/ui{path}") for method, path in PAGES}
    for document in DOCUMENTS.rglob("*.md"):
        if document.name == "lakefs-api.md":
            continue
        root = f"/ui{R}" if document.name == "pages.md" else R
        for method, path in re.findall(
            r"`([A-Z]{3,6}) ([R/…][^`\s?]*)[^`]*`", document.read_text()
        ):
            route = re.sub(r"^R(?=/|$)|^/repositories/R(?=/)", root, path.removeprefix("/api/v1"))
            ends = {route} if route[0] != "…" else {p for _, p in known if p.endswith(route[1:])}
            assert {(method, end) for end in ends} & known, (document.name, method, path)
