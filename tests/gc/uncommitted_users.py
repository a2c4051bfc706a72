"""Users who upload past the program, commit, and whatever else there is to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from hypothesis import strategies as st

from ebbtide.arrow import texts
from ebbtide.errors import Conflict
from ebbtide.store.collecting.preparing import Uncommitted
from ebbtide.store.content.layout import slice_of
from tests.gc.committing_users import CommittingUsers
from tests.gc.slow_users import Steps
from tests.gc.uncommitted_model import Promise
from tests.gc.users import PATHS, Act

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
SPANS: Final = (
    SECOND,
    MINUTE,
    10 * MINUTE,
    HOUR,
    6 * HOUR,
    DAY,
    3 * DAY,
    timedelta(microseconds=1),
)
KINDS: Final[Mapping[str, list[str]]] = {
    "upload": ["put"] * 4 + ["delete", "delete", "copy", "copy", "rename", "copy_across", "stage"],
    "promise": ["upload", "upload", "link", "address", "send", "put"],
    "drop": ["reset", "delete", "delete", "put"],
    "version": ["commit"] * 4 + ["merge", "revert", "tag", "drop_tag", "hold", "release", "rules"],
    "refs": ["branch", "branch", "drop", "restore", "revive", "revive", "release"],
    "other": ["peek", "plant", "restart", "read", "read"],
    "slow": ["begin", "begin", "finish"],
    "move": ["rename", "rename", "finish", "put", "delete"],
    "time": ["wait"],
}


def acts(*groups: str) -> st.SearchStrategy[Act]:
    """Acts of some groups of KINDS; of all of them, if none is named."""
    kinds = [kind for group in groups or KINDS for kind in KINDS[group]]
    return st.builds(
        Act,
        kind=st.sampled_from(kinds),
        first=st.integers(0, 7),
        second=st.integers(0, 7),
        days=st.sampled_from([0.0, 0.5, 2.0, 9.0]),
        third=st.integers(0, 63),
    )


@dataclass(slots=True)
class Reading:
    """A reading in pages: what was there before the first, and what it has met."""

    continuation: str | None
    before: frozenset[str]
    met: set[str] = field(default_factory=set)


@dataclass
class UploadUsers(CommittingUsers):
    """The users, who often wait for the `grace` of runs."""

    grace: timedelta = HOUR
    reading: Reading | None = None

    # Uploads past the program.

    def _promise(self, number: int) -> Promise | None:
        newest = list(reversed(self.model.promises))[:4]
        return newest[number % len(newest)] if newest else None

    def _upload(self, act: Act) -> None:
        """Ask for an address, and upload to it."""
        self._address(act)
        self._send(Act("send", 0, 0, 0.0))

    def _address(self, act: Act) -> None:
        head, path = self._head(act.first), PATHS[act.second % len(PATHS)]
        given = self.world.lake.addresses.get(head.name, path)
        assert given.expires_at == self.world.now + self.world.settings.upload_ttl
        self.model.promises.append(
            Promise(head.name, path, given.address, given.token, given.expires_at)
        )

    def _send(self, act: Act) -> None:
        """Upload; or once more, or too late."""
        promise = self._promise(act.first)
        if promise is not None:
            data = self._data()
            self.world.bucket.store(f"{self.world.prefix}{promise.address}", data)
            self.model.files[promise.address] = data
            promise.sent.append(data)
            if not promise.outstanding(self.world.now):
                self.model.late.add(promise.address)

    def _link(self, act: Act) -> Steps:
        promise = self._promise(act.first)
        if promise is None:
            return
        lake, path, token = self.world.lake, promise.path, promise.token
        is_forged, is_foreign = act.third % 8 == 6, act.third % 8 == 7
        if is_forged:
            token = f"{token[:-9]}{'A' if token[-9] != 'A' else 'B'}{token[-8:]}"
        elif is_foreign:
            path = next(each for each in PATHS if each != path)

        def reasons() -> dict[str, bool]:
            expired = self.world.now >= promise.expires_at
            return {
                "token_invalid": is_forged,
                "token_foreign": is_foreign,
                "token_expired": expired,
                "token_used": promise.used and not expired,
                "object_not_found": not promise.sent,
            }

        linked = yield from self._staged(
            promise.branch,
            path,
            lambda: lake.addresses.link(promise.branch, path, token),
            expected=lambda: promise.sent,
            reasons=reasons,
        )
        if linked:
            assert promise.outstanding(self.world.now)
            assert not (is_forged or is_foreign)
            promise.used = True

    def link_all(self) -> None:
        """What was sent to an address whose token is outstanding can be linked."""
        for number, promise in enumerate(list(reversed(self.model.promises))[:4]):
            is_there = promise.sent and promise.branch in self.model.branches
            if is_there and promise.outstanding(self.world.now):
                self.do(Act("link", number, 0, 0.0))
                assert promise.used

    # Everything else.

    def _wait(self, act: Act) -> None:
        """For the grace, as often as not."""
        spans = SPANS[act.third // 2 % len(SPANS)], self.grace + 3 * SECOND
        self.world.clock.advance(spans[act.third % 2 == 0])

    def _restart(self, act: Act) -> None:
        """A process ends, and another takes its place."""
        self.processes[act.first % len(self.processes)] = self.world.another_process()

    def _plant(self, act: Act) -> None:
        """Somebody puts a file beside the objects: with a name of our own shape, or another."""
        objects = [address for address in self.model.files if address.startswith("data/")]
        if not objects:
            return
        data = self._data()
        place = f"data/{slice_of(objects[act.first % len(objects)])}"
        address = f"{place}/{self.count:032x}" if act.third % 2 else f"{place}/{self.count}.txt"
        self.world.bucket.store(f"{self.world.prefix}{address}", data)
        if act.third % 2:
            self.model.files[address] = data
            self.model.late.add(address)
        else:
            self.model.foreign[address] = data

    def _read(self, act: Act) -> None:
        """Read what is uncommitted, a page each time: what is needed at the end and was there at
        the beginning is found in a page, or is reachable by then."""
        now, model = self.world.now, self.model
        if self.reading is None:
            self.reading = Reading(None, frozenset(self.world.files()))
            model.reading = (now, now + self.world.settings.prepare_ttl)
        reading, pages = self.reading, Uncommitted(self.world.lake.context)
        assert model.reading is not None
        try:
            page = pages.page(reading.continuation, rows_max=1 + act.second)
        except Conflict as error:
            assert error.kind == "reading_ended"
            assert now >= model.reading[1]
            self.reading = model.reading = None
            return
        reading.met |= set(texts(page.table.column("address")))
        reading.continuation = page.next_continuation
        if page.next_continuation is None:
            self.reading = model.reading = None
            found = reading.met | model.reachable(now)
            assert not (model.uncommitted(now) & reading.before) - found
