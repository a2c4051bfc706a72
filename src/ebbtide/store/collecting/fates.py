"""What became of the data of commits that runs closed, and errors that say it.

The answer needs the storage, so that it is asked for outside of transactions. Not for: the record
of a quarantine itself (`ebbtide.quarantined`).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from ebbtide.errors import EbbtideError
from ebbtide.quarantined import Fate, fate_of, told
from ebbtide.store.collecting.roots import run_states
from ebbtide.store.context import RepositoryContext


def fates(context: RepositoryContext, run_ids: Collection[str]) -> dict[str, Fate]:
    """Returns what became of the data that runs of the repository took, by run."""
    if not run_ids:
        return {}
    with context.metadata.snapshot() as tx:
        states, now = run_states(tx, context.repository_id, run_ids), tx.now()
    name = context.info.name
    return {
        run_id: fate_of(
            context.storage, run_id, repository=name, run_state=states.get(run_id), now=now
        )
        for run_id in run_ids
    }


def tell(context: RepositoryContext, error: EbbtideError) -> None:
    """Completes an error about a commit of the repository that a run closed, and leaves all others
    as they are. If the database does not answer, the error stays true, and says less."""
    run_id = run_of(error)
    if run_id is not None:
        with suppress(EbbtideError):
            told(error, fates(context, [run_id])[run_id])


def run_of(error: EbbtideError) -> str | None:
    """Returns the run that an error about a closed commit names; None for all other errors."""
    run_id: str | None = error.details.get("run_id")
    return run_id if error.kind == "commit_expired" else None
