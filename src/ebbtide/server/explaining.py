"""Who explains, for the routes and the pages."""

from __future__ import annotations

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.explaining.explainer import Explainer, explaining_engine
from ebbtide.gc.options import RunOptions
from ebbtide.server.serving import Served


def explainer_of(served: Served, repository: str, *, limit: int) -> Explainer:
    """In this process: one more pool of workers for each request would be too many."""
    context = served.repository(repository).context
    return Explainer(
        EmbeddedRepository(context, store_id=served.store.store_id),
        engine=explaining_engine(1),
        grace=RunOptions.of(served.settings).grace,
        limit=limit,
    )
