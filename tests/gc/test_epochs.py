"""The epoch on the storage: executors of a run delete only while it names their run and hold."""

from __future__ import annotations

import pytest

from ebbtide.errors import Refused
from ebbtide.formats.base import unguarded
from ebbtide.gc.parts import Answers
from ebbtide.gc.runs import RunFolder, announce_epoch
from ebbtide.gc.sweeping.outcomes import delete_parts
from tests.support.engines import INLINE
from tests.support.histories import PlannedWorld
from tests.support.refusals import nothing_deleted

EPOCH = 7
OTHER_RUN = "f" * 32


def delete_candidates(world: PlannedWorld) -> Answers:
    """Deletes the candidates of the plan, as executors of its run under EPOCH."""
    storage = world.lake.storage
    return delete_parts(
        INLINE,
        storage=storage,
        folder=RunFolder.inside(storage, world.run_id),
        parts=world.collector().plan_of(world.run_id).candidates,
        epoch=EPOCH,
        run_id=world.run_id,
        guard=unguarded,
    )


@pytest.mark.parametrize(
    ("run_id", "epoch"),
    [
        pytest.param(OTHER_RUN, EPOCH + 1, id="another run"),
        pytest.param(OTHER_RUN, EPOCH, id="a run of a copied database, whose epochs count alike"),
        pytest.param(OTHER_RUN, EPOCH - 1, id="a run of a restored database"),
        pytest.param(None, EPOCH + 1, id="the same run, swept again"),
    ],
)
def test_a_hold_that_was_replaced_deletes_nothing(
    planned: PlannedWorld, run_id: str | None, epoch: int
) -> None:
    announce_epoch(planned.lake.storage, run_epoch=epoch, run_id=run_id or planned.run_id)
    with nothing_deleted(planned), pytest.raises(Refused) as refused:
        delete_candidates(planned)
    assert refused.value.kind == "lease_lost"


def test_the_hold_that_the_storage_names_deletes(planned: PlannedWorld) -> None:
    announce_epoch(planned.lake.storage, run_epoch=EPOCH, run_id=planned.run_id)
    assert any(each.of == "deleted" for each in delete_candidates(planned).counts)
