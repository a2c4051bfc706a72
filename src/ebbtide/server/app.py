"""The server as an ASGI application: the API, the pages and the doors over one store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from fastapi import FastAPI

from ebbtide.server import errors
from ebbtide.server.api import (
    addresses,
    collected_files,
    collections,
    commits,
    config,
    exports,
    imports,
    keys,
    locators,
    objects,
    policies,
    purges,
    refs,
    repositories,
    runs,
    schedules,
)
from ebbtide.server.api.routes import PUBLIC, GuardedRoute, Segments
from ebbtide.server.auth import Authentication
from ebbtide.server.direct import DirectObjects
from ebbtide.server.doors import DoorsInFront, open_doors
from ebbtide.server.jobs import Jobs
from ebbtide.server.layers import HeaderLimit, RequestIds, Tracing, UnreadBodies
from ebbtide.server.metrics import Measuring, Metrics
from ebbtide.server.oidc.options import oidc_options
from ebbtide.server.pages.app import PagesInFront, make_pages
from ebbtide.server.scheduler import JobStarter, Scheduler, ScheduleThread
from ebbtide.server.serving import ImportThreads
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.reclaimer import ReclaimThread

if TYPE_CHECKING:
    from ebbtide.server.oidc.provider import Provider

ISSUER_SHARE: Final = 4
"""One of so many threads may wait for the issuer of logins."""
TOPICS = (
    repositories,
    refs,
    objects,
    addresses,
    imports,
    commits,
    collections,
    collected_files,
    locators,
    policies,
    runs,
    exports,
    schedules,
    purges,
    keys,
    config,
)


def create_app(
    store: Store, shared: Path | None = None, *, settings: Settings | None = None
) -> FastAPI:
    """Returns the application. The caller opens the store before, and closes it afterwards.

    If several processes serve together, they have one directory `shared`. `settings` are those of
    the server, if options of `serve` make them differ from those of the store. Raises as
    `oidc_options` and `open_doors` do.
    """
    settings = settings or store.settings
    metrics = Metrics(shared)

    app = FastAPI(
        title="Ebbtide",
        version=version("ebbtide"),
        lifespan=_lifespan_of(store, metrics),
        # FastAPI's pages would load scripts from another site, and these routes would need no key.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.store = store
    app.state.settings = settings
    app.state.metrics = metrics
    app.state.provider = _open_provider(store)
    app.state.jobs = Jobs(metrics.jobs.set, directory=shared)
    for topic in TOPICS:
        app.router.routes.extend(topic.routes.all)
    errors.install(app)
    _add_middleware(app, store)
    return app


def _open_provider(store: Store) -> Provider | None:
    """Returns the logins by the issuer of the store's settings, or None without one. Nothing is
    asked of the issuer. The libraries for its tokens are imported only if there is one."""
    options = oidc_options(store.settings)
    if options is None:
        return None
    from ebbtide.server.oidc.issuer import Issuer
    from ebbtide.server.oidc.provider import Provider

    conversations_max = max(1, store.settings.server_threads // ISSUER_SHARE)
    return Provider(options, Issuer(options, conversations_max=conversations_max), store.box)


def _lifespan_of(
    store: Store, metrics: Metrics
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Returns what starts and stops the threads of the application."""
    settings = store.settings

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.server_threads
        app.state.import_threads = threads = ImportThreads()
        app.state.transfers = anyio.CapacityLimiter(settings.server_transfers_max)
        reclaiming = ReclaimThread(store, metrics.count_reclaimed)
        if settings.reclaim:
            reclaiming.start()
        scheduling = _schedule_thread(store, app.state.jobs)
        if settings.schedules:
            scheduling.start()
        yield
        scheduling.ask_to_stop()
        if settings.reclaim:
            await anyio.to_thread.run_sync(reclaiming.stop)
        await anyio.to_thread.run_sync(threads.stop)
        await anyio.to_thread.run_sync(app.state.jobs.close)
        if settings.schedules:
            await anyio.to_thread.run_sync(scheduling.join)

    return lifespan


def _add_middleware(app: FastAPI, store: Store) -> None:
    public = [route.path_regex for route in guarded_routes(app) if route.role == PUBLIC]
    # The middleware that is added last sees a request first.
    app.add_middleware(errors.BreakingOff)
    app.add_middleware(
        Authentication,
        keys=store.keys,
        sessions=store.sessions,
        is_public=lambda path: any(pattern.match(path) for pattern in public),
    )
    app.add_middleware(DirectObjects, store=store, routes=guarded_routes(app))
    app.add_middleware(PagesInFront, pages=make_pages(app.state))
    app.add_middleware(DoorsInFront, doors=open_doors(app.state))
    app.add_middleware(HeaderLimit, bytes_max=store.settings.server_header_max)
    app.add_middleware(Measuring, metrics=app.state.metrics)
    app.add_middleware(Tracing)
    app.add_middleware(Segments)
    app.add_middleware(UnreadBodies)
    app.add_middleware(RequestIds)


def _schedule_thread(store: Store, jobs: Jobs) -> ScheduleThread:
    starter, late_max = JobStarter(store, jobs), store.settings.schedule_late_max
    return ScheduleThread(Scheduler(store.schedules, starter, late_max=late_max))


def guarded_routes(app: FastAPI) -> list[GuardedRoute]:
    """Returns every route of the application. A route of another class would be a defect, because
    it has no role."""
    found: list[GuardedRoute] = []
    for route in app.routes:
        assert isinstance(route, GuardedRoute), route
        found.append(route)
    return found
