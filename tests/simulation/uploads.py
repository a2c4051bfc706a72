"""The part of uncommitted data: uploads past the store and their tokens, imported and planted
files, and readings of what is uncommitted in pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ebbtide.arrow import texts
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.gc.exports import Uncommitted
from tests.simulation.acting import Act
from tests.simulation.choosing import named
from tests.simulation.exact import Refused, View, value
from tests.simulation.knowledge import micros
from tests.simulation.scheduler import Violation
from tests.simulation.versions import PATHS
from tests.simulation.world import LAKE

OUTSIDE: Final = "outside"
"""Where in the bucket imported objects lie, and what nobody may delete."""


@dataclass(slots=True)
class Upload:
    """An address that was given out, with its token, and what was `sent` there last."""

    branch: str
    path: str
    address: str
    token: str
    until: datetime
    sent: bytes | None = None
    is_used: bool = False
    is_linked: bool = False
    """Whether somebody began to link it: what is sent from then on may come too late."""

    @property
    def key(self) -> str:
        """Where in the bucket it is."""
        return f"{LAKE}/{self.address}"


@dataclass(slots=True)
class Reading:
    """A reading in pages: what was uncommitted before the first, and what the pages had."""

    continuation: str | None
    before: frozenset[str]
    met: set[str] = field(default_factory=set)


def address(act: Act) -> object:
    lake, began = act.process.lake(), act.world.clock.now
    branch, path = act.pick(act.known.branches, 0), act.pick(PATHS, 1)
    act.expects(lake, lambda view: view.with_head(branch, view.head(branch)))
    given = lake.addresses.get(branch, path)
    if not began <= given.expires_at - act.world.settings.upload_ttl <= act.world.clock.now:
        raise Violation("answer", f"a token from {began} lasts until {given.expires_at}")
    act.known.uploads.append(Upload(branch, path, given.address, given.token, given.expires_at))
    return given.address


def send(act: Act) -> object:
    """Upload to an address; or once more, or too late."""
    upload = act.newest(act.known.uploads, 0)
    lake, now = act.process.lake(), act.world.clock.now
    upload.sent = f"sent by {act.number}".encode()
    if upload.is_linked or now >= upload.until:
        act.world.bucket.late.add(upload.key)
    else:
        repository_id = lake.info.repository_id
        act.known.promise(f"upload to {upload.key}", repository_id, [upload.key], upload.until)
    act.world.bucket.plain(act.world.bucket.url).put(upload.key, upload.sent)
    return upload.address


def link(act: Act) -> object:
    """Link what was sent, with its token, a forged one, or at another path."""
    lake, upload = act.process.lake(), act.newest(act.known.uploads, 0)
    kind = act.numbers[1] % 8
    path = next(each for each in PATHS if each != upload.path) if kind == 7 else upload.path
    token = _forged(upload.token) if kind == 6 else upload.token
    refused = {"token_invalid": kind == 6, "token_foreign": kind == 7}
    refused["token_used"] = upload.is_used
    refused["token_expired"] = act.world.clock.now >= upload.until
    refused["object_not_found"] = upload.sent is None
    given = value(upload.sent or b"")

    def rule(view: View) -> View:
        kinds = [name for name, applies in refused.items() if applies]
        if upload.branch not in view.branches:
            kinds.append("branch_not_found")
        if kinds:
            raise Refused(view, *kinds)
        return view.put(upload.branch, path, given)

    act.expects(lake, rule)
    act.take_back(f"upload to {upload.key}")
    upload.is_linked = True
    entry = lake.addresses.link(upload.branch, path, token)
    upload.is_used = True
    return entry


def _forged(token: str) -> str:
    other = "A" if token[-9] != "A" else "B"
    return f"{token[:-9]}{other}{token[-8:]}"


def stage_external(act: Act) -> object:
    """Import an object that lies outside of the repository."""
    lake, branch, path = act.process.lake(), act.pick(act.known.branches, 0), act.pick(PATHS, 1)
    key, data = f"{OUTSIDE}/{act.number}", b"imported"
    _put_outside(act, key, data)
    given = value(data)
    act.expects(lake, lambda view: view.put(branch, path, given))
    url = f"{act.world.bucket.url}/{key}"
    return lake.addresses.stage(branch, path, url, size_bytes=len(data), checksum=given[0])


def plant(act: Act) -> object:
    """Put a file beside the objects, with a name of the store's own shape, or another one."""
    prefix = f"{LAKE}/{DATA_PREFIX}"
    slices = sorted(
        {key.split("/")[2] for key in act.world.bucket.objects if key.startswith(prefix)}
    )
    place = f"{prefix}{act.pick(slices, 0)}"
    if act.numbers[1] % 2:
        key = f"{place}/{act.number:032x}"
        act.world.bucket.late.add(key)
        act.world.bucket.plain(act.world.bucket.url).put(key, b"planted")
        return key
    key = f"{place}/{act.number}.txt"
    _put_outside(act, key, b"planted")
    return key


def _put_outside(act: Act, key: str, data: bytes) -> None:
    act.world.bucket.plain(act.world.bucket.url).put(key, data)
    act.known.outside.add(key)


def read_page(act: Act) -> object:
    """The next page. In the end, what was uncommitted all the time was in one, or is committed."""
    lake, known = act.process.lake(), act.known
    pages = Uncommitted(lake.context)
    if known.reading is None:
        known.reading = Reading(None, _uncommitted(act, lake.info.repository_id))
    reading, known.reading = known.reading, None
    page = pages.page(reading.continuation, rows_max=1 + act.numbers[0] % 4)
    reading.met |= set(texts(page.table.column("address")))
    reading.continuation = page.next_continuation
    if page.next_continuation is not None:
        known.reading = reading
        return f"{page.table.num_rows} rows"
    if act.is_exact:
        committed = {key.partition("/")[2] for key in act.checker.needed(staged=False)}
        still = reading.before & _uncommitted(act, lake.info.repository_id)
        missing = still - reading.met - committed
        if missing:
            raise Violation("answer", f"a reading in pages has not met {sorted(missing)}")
    return "the last page"


def _uncommitted(act: Act, repository_id: str) -> frozenset[str]:
    """The addresses of all that is staged, and of tokens that can be used."""
    plain, now = act.world.database.plain, micros(act.world.clock.now)
    rows = plain.execute(
        "SELECT address FROM upload_tokens WHERE repository_id = ? AND expires_at > ?",
        (repository_id, now),
    ).fetchall()
    staged = act.checker.staged(repository_id) - act.known.outside
    return frozenset({row[0] for row in rows} | {key.partition("/")[2] for key in staged})


OPERATIONS: Final[Mapping[str, Callable[[Act], object]]] = named(
    address, send, link, stage_external, plant, read_page
)

INSTEAD: Final[Mapping[str, str]] = {"send": "address", "link": "address", "plant": "put"}

PART: Final[Mapping[str, int]] = {
    "put": 4,
    "delete": 3,
    "copy": 3,
    "stage": 5,
    "commit": 4,
    "merge": 1,
    "reset part": 2,
    "branch": 1,
    "delete branch": 1,
    "restore branch": 1,
    "upload": 2,
    "address": 3,
    "send": 4,
    "link": 4,
    "stage external": 1,
    "plant": 1,
    "read page": 4,
    "reclaim": 2,
    "read": 1,
}
