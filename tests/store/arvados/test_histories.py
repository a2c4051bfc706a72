"""Any sequence of writes, reads, deletes and collector runs: what is signed is there.

Source: the race in the Arvados wiki, "Expiring collections": get a collection with its signed
manifest, delete it, collect, make a new collection of the manifest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hypothesis.strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ebbtide.errors import EbbtideError
from ebbtide.ids import new_id
from ebbtide.store.arvados.collections import ArvadosCollection
from tests.support.arvados import (
    HOLDER,
    manifest_of,
    put_block,
    read_blocks,
    save,
    signed,
)
from tests.support.collections import raises
from tests.support.randomized import INDEPENDENT, examples, randomized
from tests.support.world import World

LEASE = timedelta(hours=1)
VOLUME = "histories of signed manifests"
DATA = st.sampled_from([b"one", b"two", b"three"])
CHOICES = st.integers(0, 99)
STEPS = st.sampled_from([0, 1, 29, 31, 59])


class SignedManifests(RuleBasedStateMachine):
    """Every signed manifest stands in `promises`, with the end of its signatures and its bytes."""

    manifests = Bundle("manifests")

    @initialize()
    def begin(self) -> None:
        self._directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        settings = {"lease_ttl": LEASE, "trash_time": timedelta(0)}
        self.world = World(Path(self._directory.name), settings=settings)
        self.lake = self.world.lake
        self.project_id = self.lake.projects.create("project").project_id
        self.promises: list[tuple[str, datetime, list[bytes]]] = []
        self.plans: list[str] = []
        self.kept: dict[str, tuple[ArvadosCollection, list[bytes]]] = {}

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.store.close()
            self._directory.cleanup()

    @rule(target=manifests, data=DATA)
    def put(self, data: bytes) -> str:
        return self._promised(manifest_of(put_block(self.lake, data)), [data])

    @rule(text=manifests)
    def create(self, text: str) -> None:
        name = new_id()[:8]
        self._made_in_time(text, lambda: save(self.lake, self.project_id, name, text))

    @precondition(lambda self: self.kept)
    @rule(text=manifests, choice=CHOICES)
    def update(self, text: str, choice: int) -> None:
        """An update without a version: the manifest before it stays promised."""
        uuid = self._chosen(choice)
        change = self.lake.arvados_collections.update
        self._made_in_time(text, lambda: change(uuid, holder=HOLDER, manifest_text=text))

    @precondition(lambda self: self.kept)
    @rule(target=manifests, choice=CHOICES)
    def get(self, choice: int) -> str:
        found, blocks = self.kept[self._chosen(choice)]
        return self._promised(signed(self.lake, found), blocks)

    @precondition(lambda self: self.kept)
    @rule(choice=CHOICES)
    def delete(self, choice: int) -> None:
        uuid = self._chosen(choice)
        self.lake.arvados_collections.delete(uuid)
        del self.kept[uuid]

    @rule(minutes=STEPS)
    def wait(self, minutes: int) -> None:
        self.world.clock.advance(timedelta(minutes=minutes))

    @rule()
    def plan(self) -> None:
        self.plans.append(self.world.collector().plan().run_id)

    @rule()
    def sweep(self) -> None:
        """Sweeps the oldest plan, which can be much older than the state that it meets."""
        if self.plans:
            try:
                self.world.collector().sweep(self.plans.pop(0))
            except EbbtideError as error:
                assert error.kind in ("plan_used", "plan_missing", "run_in_progress"), error
        self.check()

    @rule()
    def collect(self) -> None:
        self.world.collect()
        self.check()

    def check(self) -> None:
        """Whatever is signed and has not ended is there, byte for byte."""
        for text, ends_at, blocks in self.promises:
            if ends_at > self.world.now:
                assert read_blocks(self.lake, text) == blocks
        for found, blocks in self.kept.values():
            assert read_blocks(self.lake, signed(self.lake, found)) == blocks

    def _chosen(self, choice: int) -> str:
        return sorted(self.kept)[choice % len(self.kept)]

    def _promised(self, text: str, blocks: list[bytes]) -> str:
        self.promises.append((text, self._end(text), blocks))
        return text

    def _end(self, text: str) -> datetime:
        seconds = int(text.split("@")[1][:8], 16)
        return datetime.fromtimestamp(seconds, UTC)

    def _made_in_time(self, text: str, make: Callable[[], ArvadosCollection]) -> None:
        """Before the signatures end, it is made, and its data is there. Afterwards it is
        refused."""
        ends_at, blocks = next(each[1:] for each in self.promises if each[0] == text)
        if ends_at <= self.world.now:
            with raises("token_expired"):
                make()
        else:
            made = make()
            self.kept[made.listed.uuid] = (made, blocks)
            assert read_blocks(self.lake, signed(self.lake, made)) == blocks


@randomized(VOLUME)
def test_any_history() -> None:
    run_state_machine_as_test(
        SignedManifests,
        settings=examples(VOLUME, stateful_step_count=25, backend=INDEPENDENT),
    )
