"""The state of the server, for monitoring."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.openapi.utils import get_openapi

from ebbtide.server.api.routing import Routes
from ebbtide.server.metrics import CONTENT_TYPE, Metrics
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.reclaimer import Reclaimer

routes = Routes("status")


@routes.add("GET", "/healthcheck", None, status=204)
def health_check(served: ServedDep) -> Response:
    """Answers 204 while the server and its database work. The route is public, and tells nothing
    else."""
    served.store.catalog.page(amount=1)
    return Response(status_code=204)


@routes.add("GET", "/metrics", Role.READER, response_class=Response)
def get_metrics(request: Request) -> Response:
    """Returns the metrics in the format of Prometheus. Prometheus needs an access key to read
    them."""
    metrics: Metrics = request.app.state.metrics
    store: Store = request.app.state.store
    metrics.show_backlog(*Reclaimer(store).backlog())
    metrics.show_schedules(store.schedules.all()[0])
    return Response(metrics.render(), media_type=CONTENT_TYPE)


@routes.add("GET", "/openapi.json", Role.NONE)
def get_openapi_document(request: Request) -> dict[str, Any]:
    """Returns the OpenAPI document of the routes. `x-role` is the role that a route needs."""
    app = request.app
    return get_openapi(title=app.title, version=app.version, routes=app.routes)
