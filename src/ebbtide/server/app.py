"""The server as an application: the store behind its routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio
import anyio.to_thread
from fastapi import FastAPI

from ebbtide.server import errors
from ebbtide.server.auth import Authentication
from ebbtide.server.jobs import Jobs
from ebbtide.server.limits import HeaderLimit
from ebbtide.server.metrics import Measuring, Metrics
from ebbtide.server.pages.app import PagesInFront, make_pages
from ebbtide.server.routes import (
    branches,
    collected_files,
    collecting,
    collections,
    commits,
    config,
    explaining,
    locators,
    merging,
    objects,
    projects,
    purges,
    repositories,
    retention,
    signing,
    staging,
    status,
    tags,
)
from ebbtide.server.routing import PUBLIC, GuardedRoute, Segments
from ebbtide.store.embedded import Store
from ebbtide.store.reclaiming import ReclaimThread

TOPICS = (
    repositories,
    branches,
    tags,
    objects,
    staging,
    commits,
    merging,
    projects,
    collections,
    collected_files,
    locators,
    retention,
    collecting,
    explaining,
    purges,
    signing,
    config,
    status,
)


def create_app(store: Store) -> FastAPI:
    """The application. The store stays open until whoever opened it closes it."""
    settings = store.settings
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.server_threads
        app.state.transfers = anyio.CapacityLimiter(settings.server_transfers_max)
        reclaiming = ReclaimThread(store, metrics.count_reclaimed)
        if settings.reclaim:
            reclaiming.start()
        yield
        if settings.reclaim:
            await anyio.to_thread.run_sync(reclaiming.stop)
        await anyio.to_thread.run_sync(app.state.jobs.close)

    app = FastAPI(
        title="Ebbtide",
        version=version("ebbtide"),
        lifespan=lifespan,
        # The page that shows them would be fetched from elsewhere; and all need a key.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.store = store
    app.state.settings = settings
    app.state.metrics = metrics
    app.state.jobs = Jobs(metrics.jobs.set)
    for topic in TOPICS:
        app.router.routes.extend(topic.routes.all)
    errors.install(app)
    public = [route.path_regex for route in guarded_routes(app) if route.role == PUBLIC]
    # The last is the first to see a request.
    app.add_middleware(errors.BreakingOff)
    app.add_middleware(
        Authentication,
        keys=store.keys,
        is_public=lambda path: any(pattern.match(path) for pattern in public),
    )
    app.add_middleware(PagesInFront, pages=make_pages(app.state))
    app.add_middleware(HeaderLimit, bytes_max=settings.server_header_max)
    app.add_middleware(Measuring, metrics=metrics)
    app.add_middleware(Segments)
    return app


def guarded_routes(app: FastAPI) -> list[GuardedRoute]:
    """Every route. A route of another kind is a defect: nothing says who may call it."""
    found: list[GuardedRoute] = []
    for route in app.routes:
        assert isinstance(route, GuardedRoute), route
        found.append(route)
    return found
