"""Makes the explainer that the routes and the pages use."""

from __future__ import annotations

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.engine import LocalEngine
from ebbtide.gc.explaining.explainer import Explainer
from ebbtide.gc.options import RunOptions
from ebbtide.server.serving import Served


def explainer_of(served: Served, repository: str, *, limit: int) -> Explainer:
    """Returns an explainer for a repository that works within this process."""
    context = served.repository(repository).context
    return Explainer(
        EmbeddedRepository(context, store_id=served.store.store_id),
        engine=LocalEngine(),
        grace=RunOptions.of(served.settings).grace,
        limit=limit,
    )
