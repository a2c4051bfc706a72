"""Opens repositories for the collector: those of a store, gone ones, and those elsewhere.

The command line, the server and the Python interface share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from ebbtide.errors import NotFound
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import WithPolicy
from ebbtide.formats.schemes import always_quarantined, require_not_quiet, scheme_of
from ebbtide.gc.options import RunOptions, parse_quarantine
from ebbtide.gc.steps import Observer, silent
from ebbtide.run_request import Period, RunRequest

if TYPE_CHECKING:
    from ebbtide.audit.explain import Explainer
    from ebbtide.gc.collector import Collector
    from ebbtide.gc.engines.base import Engine
    from ebbtide.settings import Settings
    from ebbtide.store.embedded import Store


@dataclass(frozen=True, slots=True)
class Collected:
    """A repository that can be collected.

    `key` identifies the repository among others: its id if it is of a store, else its name.
    `sessions` is how long clients of a repository elsewhere can use data that no ref names; None
    for a repository of a store. `store` is the store, or None elsewhere. `run_dir` is another
    directory with files of runs, in which explanations look too.
    """

    name: str
    key: str
    form: RepositoryFormat
    settings: Settings
    sessions: timedelta | None = None
    store: Store | None = None
    run_dir: str | None = None

    @property
    def with_policy(self) -> WithPolicy:
        """The repository, whose policy can be read and set. Raises NotFound `policy_not_found`
        for one that has none."""
        if not isinstance(self.form, WithPolicy):
            raise NotFound(
                "policy_not_found",
                f"{self.name} has no policy: each 'ebbtide expire' names what to keep",
            )
        return self.form

    def options(self, **asked: Unpack[RunRequest]) -> RunOptions:
        """Returns the options of a run, from the settings and what was asked.

        A quarantine of ASKED has an effect only if runs of the repository can be undone. Raises
        InvalidInput `invalid_duration`, `invalid_date` or `invalid_argument`.
        """
        quarantine = asked.get("quarantine") or always_quarantined(self.name)
        asked["quarantine"] = parse_quarantine(quarantine, self.form)
        return RunOptions.of(self.settings, sessions=self.sessions, **asked)

    def running_id(self) -> str | None:
        """Returns the id of the run that holds the repository now, in any process; or None. Raises
        Refused `run_in_progress` if the lease's file is damaged."""
        from ebbtide.gc.hold import running_id

        return running_id(self.form, lease_ttl=self.settings.run_lease_ttl)

    def collector(
        self,
        engine: Engine | None = None,
        options: RunOptions | None = None,
        observer: Observer = silent,
    ) -> Collector:
        """Returns the collector. For a gone repository, it is a `Remover`.

        Without an engine, it needs no Spark: this is enough to read the records of runs.
        """
        from ebbtide.formats.gone import GoneRepository
        from ebbtide.gc.collector import Collector
        from ebbtide.gc.engines.duckdb import DuckEngine

        given: dict[str, Any] = {  # the arguments of both classes
            "engine": DuckEngine() if engine is None else engine,
            "options": self.options() if options is None else options,
            "observer": observer,
        }
        gone, store = self.form, self.store
        if isinstance(gone, GoneRepository) and store is not None:
            from ebbtide.gc.removal import Remover
            from ebbtide.purge.deleting import outlast

            return Remover(gone, preserve=lambda: outlast(store, gone.context), **given)
        return Collector(self.form, **given)

    def explainer(
        self,
        *,
        limit: int,
        grace: Period | None = None,
        engine: Engine | None = None,
    ) -> Explainer:
        """Returns the explainer, whose lists have at most `limit` rows. `grace` is that of runs."""
        from ebbtide.audit.explain import Explainer
        from ebbtide.gc.engines.duckdb import DuckEngine

        engine = DuckEngine() if engine is None else engine
        options = self.options(grace=grace)
        return Explainer(
            self.form, engine=engine, grace=options.grace, limit=limit, run_dir=self.run_dir
        )


def open_collected(
    name: str,
    *,
    settings: Settings,
    store: Callable[[], Store],
    run_dir: str | None = None,
    quiet: bool = False,
    gone: bool = False,
) -> Collected:
    """Opens the repository of a name: of a store, or elsewhere (`icechunk:PATH`, `lakefs:NAME`).

    `store` is called only for a repository of a store, whose settings then replace `settings`. With
    `gone`, a deleted repository is found too, by its name or id. Raises NotFound
    `repository_not_found`, and as `Scheme.open` and `store` do.
    """
    scheme = scheme_of(name)
    if scheme is not None:
        opened, sessions = scheme.open(name, settings, run_dir=run_dir, quiet=quiet)
        return Collected(name, name, opened, settings, sessions, run_dir=run_dir)
    require_not_quiet(quiet=quiet)
    return replace(collected_in(store(), name, gone=gone), run_dir=run_dir)


def collected_in(store: Store, name: str, *, gone: bool = False) -> Collected:
    """Returns a repository of a store. Raises NotFound `repository_not_found`."""
    from ebbtide.formats.embedded import EmbeddedRepository
    from ebbtide.formats.gone import GoneRepository

    form: EmbeddedRepository
    try:
        context = store.repository(name).context
        form = EmbeddedRepository(context, store_id=store.store_id)
    except NotFound:
        info = store.catalog.find_gone(name) if gone else None
        if info is None:
            raise
        context = store.context_of(info)
        form = GoneRepository(context, store_id=store.store_id)
    info = context.info
    return Collected(info.name, info.repository_id, form, store.settings, store=store)
