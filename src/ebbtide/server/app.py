"""The server as an ASGI application: the API, the pages and the S3 gateway over one store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import anyio
import anyio.to_thread
from fastapi import FastAPI

from ebbtide.server import errors
from ebbtide.server.api import (
    branches,
    collected_files,
    collecting,
    collections,
    commits,
    config,
    dumps,
    explaining,
    importing,
    locators,
    logins,
    merging,
    objects,
    projects,
    protection,
    purges,
    repositories,
    retention,
    schedules,
    signed_parts,
    signing,
    staging,
    status,
    symlinks,
    tags,
)
from ebbtide.server.api.routing import PUBLIC, GuardedRoute, Segments
from ebbtide.server.arvados.app import ArvadosInFront, make_arvados
from ebbtide.server.auth import Authentication
from ebbtide.server.direct import DirectObjects
from ebbtide.server.import_threads import ImportThreads
from ebbtide.server.job_files import JobFiles
from ebbtide.server.jobs import Jobs
from ebbtide.server.limits import HeaderLimit
from ebbtide.server.metrics import Measuring, Metrics
from ebbtide.server.oidc.opening import open_provider
from ebbtide.server.pages.app import PagesInFront, make_pages
from ebbtide.server.request_ids import RequestIds
from ebbtide.server.s3.gateway import S3Gateway
from ebbtide.server.scheduling import JobStarter, Scheduler, ScheduleThread
from ebbtide.server.shared import jobs_of, metrics_of
from ebbtide.server.tracing import Tracing
from ebbtide.server.unread import UnreadBodies
from ebbtide.store.embedded import Store
from ebbtide.store.reclaim.reclaimer import ReclaimThread

TOPICS = (
    repositories,
    branches,
    tags,
    objects,
    staging,
    symlinks,
    signed_parts,
    importing,
    commits,
    merging,
    projects,
    collections,
    collected_files,
    locators,
    retention,
    protection,
    collecting,
    schedules,
    dumps,
    explaining,
    purges,
    signing,
    logins,
    config,
    status,
)


def create_app(
    store: Store, shared: Path | None = None, *, arvados_repository: str | None = None
) -> FastAPI:
    """Returns the application. The caller opens the store before, and closes it afterwards.

    If several processes serve together, they have one directory `shared`. `arvados_repository`
    overrides the setting of this name. Raises NotFound `repository_not_found` if it does not exist,
    and as `open_provider` does.
    """
    settings = store.settings
    metrics = Metrics(None if shared is None else metrics_of(shared))
    files = None if shared is None else JobFiles(jobs_of(shared))

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
    app.state.provider = open_provider(store)
    app.state.jobs = Jobs(metrics.jobs.set, files=files)
    for topic in TOPICS:
        app.router.routes.extend(topic.routes.all)
    errors.install(app)
    _add_middleware(app, store, arvados_repository or settings.arvados_repository)
    return app


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


def _add_middleware(app: FastAPI, store: Store, arvados_repository: str | None) -> None:
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
    if arvados_repository is not None:
        app.add_middleware(ArvadosInFront, arvados=make_arvados(app.state, arvados_repository))
    app.add_middleware(S3Gateway, store=store)
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
