"""The part of Arvados: signed blocks, and collections of manifests, by two holders of keys.

The race in the Arvados wiki, "Expiring collections", is one of its histories: a client gets a
manifest, another deletes the collection, a run collects, and the client saves the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.errors import EbbtideError
from ebbtide.store.arvados.manifests import parse_manifest
from ebbtide.store.repository import Repository
from tests.simulation.acting import Act
from tests.simulation.choosing import Nothing
from tests.simulation.exact import Value, value
from tests.simulation.knowledge import micros
from tests.simulation.projects import exactly, find_item, with_kinds
from tests.simulation.scheduler import Violation
from tests.simulation.shelves import Item, Shelves, read_shelves
from tests.simulation.world import LAKE, LEASE
from tests.support.arvados import md5, put_block, read_block

HOLDERS: Final = ("HOLDERONE", "HOLDERTWO")
BLOCKS: Final = (b"one", b"two two", b"three three three")
BY_MD5: Final = {md5(data): data for data in BLOCKS}
SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Signature:
    """A locator that a holder got, which promises the block of `data` until its end."""

    holder: str
    locator: str
    data: bytes

    @property
    def until(self) -> datetime:
        """It is in the locator, in whole seconds."""
        return datetime.fromtimestamp(int(self.locator.rpartition("@")[2], 16), UTC)


def _signed(act: Act, lake: Repository, found: list[Signature], latest: int | None) -> None:
    """Somebody got signatures, which last for a lease, or until the collection ends at `latest`."""
    repository_id, began = lake.info.repository_id, act.world.clock.now
    for each in found:
        located = lake.blocks.find(each.locator, holder=each.holder)
        if located is None:
            raise Violation("answer", f"the block of {each.locator} is not found")
        name = f"signature {len(act.known.signatures)} {each.locator}"
        act.known.promise(name, repository_id, [f"{LAKE}/{located.address}"], each.until)
        act.known.signatures.append(each)
        is_full = each.until > began + LEASE - 2 * SECOND
        ends_with_it = latest is not None and micros(each.until + SECOND) >= latest
        if act.is_exact and not (is_full or ends_with_it):
            raise Violation("answer", f"{each.locator} lasts until {each.until}")


def put(act: Act) -> object:
    """Write a block."""
    lake, holder, data = act.process.lake(), act.pick(HOLDERS, 0), act.pick(BLOCKS, 1)
    act.expects(lake, lambda view: view)
    locator = put_block(lake, data, holder=holder)
    if not locator.startswith(f"{md5(data)}+{len(data)}+"):
        raise Violation("answer", f"a block of {data!r} is {locator}")
    _signed(act, lake, [Signature(holder, locator, data)], None)
    return locator


def put_damaged(act: Act) -> object:
    """Write bytes that are not those of the hash."""
    lake, data = act.process.lake(), act.pick(BLOCKS, 1)
    return _refused(
        act,
        "checksum_mismatch",
        lambda: lake.blocks.put(md5(data), data[::-1] + b"!", holder=HOLDERS[0], size_bytes=None),
    )


def _refused(act: Act, kind: str, call: Callable[[], object]) -> object:
    """A call that must be refused, whatever else is under way. Raises Violation."""
    try:
        answer = call()
    except EbbtideError as error:
        if act.is_exact and error.kind != kind:
            raise Violation("answer", f"{error.kind}: {error.message}; not {kind}") from error
        raise
    raise Violation("answer", f"{answer} in place of {kind}")


def read(act: Act) -> object:
    """Read a block, also by the signature of another holder, or too late."""
    lake, holder = act.process.lake(), act.pick(HOLDERS, 0)
    signature = act.newest(act.known.signatures, 1)
    if signature.holder != holder:
        return _refused(
            act, "token_invalid", lambda: read_block(lake, signature.locator, holder=holder)
        )
    if signature.until <= act.world.clock.now:
        return _refused(
            act, "token_expired", lambda: read_block(lake, signature.locator, holder=holder)
        )
    act.expects(lake, lambda view: view)
    data = read_block(lake, signature.locator, holder=holder)
    if data != signature.data:
        raise Violation("answer", f"{signature.locator} reads {data!r}")
    return data


def steal(act: Act) -> object:
    """Make a collection of a locator that another holder got."""
    lake, signature = act.process.lake(), act.newest(act.known.signatures, 1)
    other = next(each for each in HOLDERS if each != signature.holder)
    project_id = find_item(act, lake, "project", 2).item_id
    create, text = lake.arvados_collections.create, _manifest([signature])
    return _refused(
        act, "token_invalid", lambda: create(project_id, f"{act.number}", text, holder=other)
    )


def save(act: Act) -> object:
    """Make a collection of signatures, or of a manifest that was read before, perhaps long ago."""
    lake, holder = act.process.lake(), act.pick(HOLDERS, 0)
    found, project = _chosen(act, holder), find_item(act, lake, "project", 2)
    new = Item("collection", "", project.item_id, f"{act.number}", contents=_contents(found))
    create = lake.arvados_collections.create
    made = exactly(
        act,
        lake,
        lambda: create(project.item_id, new.name, _manifest(found), holder=holder),
        lambda shelves: with_kinds(lambda: shelves.made(new, unique=False), _late(found, shelves)),
    )
    act.known.arvados[made.listed.uuid] = made.listed.collection_id
    return made.listed.uuid


def _chosen(act: Act, holder: str) -> list[Signature]:
    manifests = [each for who, each in act.known.manifests if who == holder]
    if manifests and act.numbers[1] % 3 == 0:
        return act.newest(manifests, 3)
    mine = [each for each in act.known.signatures if each.holder == holder][-4:]
    return [each for place, each in enumerate(mine) if act.numbers[3] >> place & 1]


def _late(found: list[Signature], shelves: Shelves) -> tuple[str, ...]:
    ended = any(micros(each.until) <= shelves.now for each in found)
    return ("token_expired",) if ended else ()


def _contents(found: list[Signature]) -> dict[str, Value]:
    """The blocks, and the manifest itself, without signatures."""
    blocks = {_name(each.data): value(each.data) for each in found}
    text = _text([_name(each.data) for each in found], found)
    return {**blocks, "manifest": value(text.encode())}


def _name(data: bytes) -> str:
    return f"{md5(data)}+{len(data)}"


def _manifest(found: list[Signature]) -> str:
    return _text([each.locator for each in found], found)


def _text(locators: list[str], found: list[Signature]) -> str:
    """A manifest of one file, which has these blocks."""
    size = sum(len(each.data) for each in found)
    return f". {' '.join(locators)} 0:{size}:file\n" if found else ""


def _collection(act: Act, lake: Repository) -> tuple[str, Item]:
    shelves = read_shelves(act.checker, lake.info.repository_id)
    there = {uuid: each for uuid, each in act.known.arvados.items() if each in shelves.items}
    uuid = act.newest([*there], 1)
    return uuid, shelves.items[there[uuid]]


def update(act: Act) -> object:
    """Give a collection another manifest. What was signed of the one before it stays promised."""
    lake, holder = act.process.lake(), act.pick(HOLDERS, 0)
    (uuid, item), found = _collection(act, lake), _chosen(act, holder)
    change, keeps = lake.arvados_collections.update, act.numbers[2] % 3 == 0
    was_kept = act.known.preserved.get(uuid, False)
    versions = {**item.versions, item.version: item.contents} if was_kept else item.versions
    wanted = item.with_contents(_contents(found), versions, is_kept=was_kept)

    def rule(shelves: Shelves) -> Item:
        kinds = ("collection_not_found", "trashed") if shelves.is_hidden(item) else ()
        return with_kinds(lambda: wanted, (*kinds, *_late(found, shelves)))

    answer = exactly(
        act,
        lake,
        lambda: change(uuid, holder=holder, manifest_text=_manifest(found), preserve_version=keeps),
        rule,
    )
    act.known.preserved[uuid] = keeps
    return answer.listed.version


def show(act: Act) -> object:
    """Read the signed manifest of a collection."""
    lake, holder = act.process.lake(), act.pick(HOLDERS, 0)
    _, item = _collection(act, lake)
    sign = lake.arvados_collections.signed_manifest

    def rule(shelves: Shelves) -> Item:
        kinds = ("collection_not_found",) if shelves.is_hidden(item) else ()
        return with_kinds(lambda: item, kinds)

    ends_at = read_shelves(act.checker, lake.info.repository_id).ends_at(item)
    text = exactly(act, lake, lambda: sign(item.item_id, holder=holder), rule)
    found = [
        Signature(holder, locator, BY_MD5[locator[:32]])
        for locators in parse_manifest(text).locators.values()
        for locator in locators
    ]
    shown = {path for path in _contents(found) if path != "manifest"}
    if act.is_exact and shown != {*(item.contents or ())} - {"manifest"}:
        raise Violation("answer", f"{item} is shown as {text}")
    _signed(act, lake, found, ends_at)
    act.known.manifests.append((holder, found))
    return text


def end(act: Act) -> object:
    """Move a collection to the trash, or restore it."""
    lake = act.process.lake()
    uuid, item = _collection(act, lake)
    store = lake.arvados_collections
    if act.numbers[2] % 3:
        return exactly(act, lake, lambda: store.delete(uuid), lambda shelves: shelves.trashed(item))
    return exactly(
        act,
        lake,
        lambda: store.restore(uuid, ensure_unique_name=True),
        lambda shelves: shelves.restored(item, unique=True),
    )


def wait(act: Act) -> object:
    """Let time pass to the second in which a signature ends, or to the one before."""
    now = act.world.clock.now
    coming = sorted({each.until for each in act.known.signatures if each.until > now})
    if not coming:
        raise Nothing
    act.world.clock.now = max(now, act.pick(coming, 0) - SECOND * (act.numbers[1] % 2))
    return act.world.clock.now


OPERATIONS: Final[Mapping[str, Callable[[Act], object]]] = {
    "put block": put,
    "put damaged block": put_damaged,
    "read block": read,
    "steal block": steal,
    "save manifest": save,
    "update manifest": update,
    "show manifest": show,
    "end manifest": end,
    "wait for a signature": wait,
}

INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(OPERATIONS, "save manifest"),
    "put damaged block": "put block",
    "read block": "put block",
    "steal block": "put block",
    "save manifest": "make project",
    "wait for a signature": "put block",
}

PART: Final[Mapping[str, int]] = {
    "put block": 6,
    "put damaged block": 1,
    "read block": 3,
    "steal block": 1,
    "save manifest": 5,
    "update manifest": 3,
    "show manifest": 4,
    "end manifest": 4,
    "wait for a signature": 2,
    "run": 1,
}
