"""The part of Arvados: signed blocks, and collections of manifests, by two clients over HTTP.

The race in the Arvados wiki, "Expiring collections", is one of its histories: a client gets a
manifest, another deletes the collection, a run collects, and the client saves the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ebbtide.doors.arvados.store.manifests import parse_manifest
from ebbtide.doors.arvados.store.repository import ArvadosRepository
from ebbtide.doors.arvados.store.uuids import GROUP, uuid_of
from ebbtide.errors import EbbtideError
from ebbtide.store.repository import Repository
from tests.simulation.acting import Act
from tests.simulation.asking import HOLDERS
from tests.simulation.choosing import Nothing
from tests.simulation.exact import Value, value
from tests.simulation.knowledge import micros
from tests.simulation.projects import drawn_date, exactly, find_item, stored, with_kinds
from tests.simulation.scheduler import Violation
from tests.simulation.shelves import Item, Shelves, read_shelves
from tests.simulation.world import LAKE, LEASE
from tests.support.arvados import md5

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
        located = ArvadosRepository(lake).blocks.find(each.locator, holder=each.holder)
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
    lake, holder, data = act.process.lake(), act.pick(HOLDERS, 0), act.pick(BLOCKS, 1)
    act.expects(lake, lambda view: view)
    locator = act.process.asking.put(holder, md5(data), data)
    if not locator.startswith(f"{md5(data)}+{len(data)}+"):
        raise Violation("answer", f"a block of {data!r} is {locator}")
    _signed(act, lake, [Signature(holder, locator, data)], None)
    return locator


def put_damaged(act: Act) -> object:
    """Write bytes that are not those of the hash."""
    data, put = act.pick(BLOCKS, 1), act.process.asking.put
    return _refused(act, "checksum_mismatch", lambda: put(HOLDERS[0], md5(data), data[::-1] + b"!"))


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
    """Read a block or ask for its size, also by the signature of another holder, or too late."""
    holder, asking = act.pick(HOLDERS, 0), act.process.asking
    signature = act.newest(act.known.signatures, 1)
    is_late = signature.until <= act.world.clock.now
    forbidden = is_late or signature.holder != holder
    if act.numbers[2] % 3 == 0:
        size = asking.head(holder, signature.locator)
        if act.is_exact and size != (None if forbidden else len(signature.data)):
            raise Violation("answer", f"{signature.locator} has {size} bytes")
        return size
    if forbidden:
        kind = "token_invalid" if signature.holder != holder else "token_expired"
        return _refused(act, kind, lambda: asking.read(holder, signature.locator))
    act.expects(act.process.lake(), lambda view: view)
    data = asking.read(holder, signature.locator)
    if data != signature.data:
        raise Violation("answer", f"{signature.locator} reads {data!r}")
    return data


def steal(act: Act) -> object:
    """Make a collection of a locator that another holder got."""
    lake, signature = act.process.lake(), act.newest(act.known.signatures, 1)
    other = next(each for each in HOLDERS if each != signature.holder)
    fields = _fields(lake, find_item(act, lake, "project", 2), f"{act.number}", [signature])
    create = act.process.asking.collection
    return _refused(act, "token_invalid", lambda: create(other, "POST", "", fields))


def _fields(
    lake: Repository, project: Item, name: str, found: list[Signature]
) -> dict[str, object]:
    owner_uuid = uuid_of(ArvadosRepository(lake).owners.cluster, GROUP, project.item_id)
    return {"owner_uuid": owner_uuid, "name": name, "manifest_text": _manifest(found)}


def save(act: Act) -> object:
    """Make a collection of signatures, or of a manifest that was read before, perhaps long ago."""
    lake, holder = act.process.lake(), act.pick(HOLDERS, 0)
    found, project = _chosen(act, holder), find_item(act, lake, "project", 2)
    new = Item("collection", "", project.item_id, f"{act.number}", contents=_contents(found))
    fields, ask = _fields(lake, project, new.name, found), act.process.asking.collection
    answer = exactly(
        act,
        lake,
        lambda: ask(holder, "POST", "", fields),
        lambda shelves: with_kinds(lambda: shelves.made(new, unique=False), _late(found, shelves)),
    )
    row = act.world.database.plain.execute(
        "SELECT collection_id FROM arvados_collections WHERE uuid = ?", (answer["uuid"],)
    ).fetchone()
    if row is not None:  # else the repository has ended since
        act.known.arvados[answer["uuid"]] = row[0]
        _shown(act, lake, holder, answer)
    return answer["uuid"]


def _shown(act: Act, lake: Repository, holder: str, answer: dict[str, Any]) -> None:
    """Takes note of the signatures in the record of a collection, and compares the record."""
    uuid, text = answer["uuid"], answer.get("manifest_text")
    shelves = read_shelves(act.checker, lake.info.repository_id)
    item = shelves.items.get(act.known.arvados[uuid])
    if item is None:
        return
    found = [
        Signature(holder, locator, BY_MD5[locator[:32]])
        for locators in parse_manifest(text or "").locators.values()
        for locator in locators
    ]
    trash_at = answer["trash_at"] and micros(datetime.fromisoformat(answer["trash_at"]))
    said = answer["version"], answer["preserve_version"]
    wanted = item.version, act.known.preserved.get(uuid, False)
    shown = None if text is None else {_name(each.data) for each in found}
    has_text = not shelves.is_hidden(item) and item.copies and item.contents is not None
    blocks = {*(item.contents or ())} - {"manifest"} if has_text else None
    if act.is_exact and (said, trash_at, shown) != (wanted, item.expires_at, blocks):
        raise Violation("answer", f"{item} is shown as {answer}")
    _signed(act, lake, found, shelves.ends_at(item))
    if found:
        act.known.manifests.append((holder, found))


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
    """One whose content no other program has changed: of such a one there is no manifest."""
    shelves = read_shelves(act.checker, lake.info.repository_id)
    there = {
        uuid: shelves.items[each]
        for uuid, each in act.known.arvados.items()
        if each in shelves.items and each not in act.known.refilled
    }
    uuid = act.newest([*there], 1)
    return uuid, there[uuid]


def _asked(
    act: Act,
    change: Callable[[], dict[str, Any]],
    rule: Callable[[Shelves], Item],
    holder: str,
) -> object:
    """A request about a collection. Its answer has a signed manifest, if there is one."""
    lake = act.process.lake()
    answer = exactly(act, lake, change, rule)
    _shown(act, lake, holder, answer)
    return answer["version"]


def update(act: Act) -> object:
    """Give a collection another manifest. What was signed of the one before it stays promised."""
    lake, holder, ask = act.process.lake(), act.pick(HOLDERS, 0), act.process.asking.collection
    (uuid, item), found = _collection(act, lake), _chosen(act, holder)
    keeps, was_kept = act.numbers[2] % 3 == 0, act.known.preserved.get(uuid, False)
    fields = {"manifest_text": _manifest(found), "preserve_version": keeps}
    versions = {**item.versions, item.version: item.contents} if was_kept else item.versions
    wanted = item.with_contents(_contents(found), versions, is_kept=was_kept)

    def rule(shelves: Shelves) -> Item:
        kinds = ("collection_not_found", "trashed") if shelves.is_hidden(item) else ()
        return with_kinds(lambda: wanted, (*kinds, *_late(found, shelves)))

    def change() -> dict[str, Any]:
        answer = ask(holder, "PUT", f"/{uuid}", fields)
        act.known.preserved[uuid] = keeps
        return answer

    return _asked(act, change, rule, holder)


def show(act: Act) -> object:
    """Read a collection with its signed manifest, perhaps from the trash, where it has none."""
    lake, holder, ask = act.process.lake(), act.pick(HOLDERS, 0), act.process.asking.collection
    (uuid, item), with_trash = _collection(act, lake), act.numbers[2] % 3 == 0

    def rule(shelves: Shelves) -> Item:
        kinds = ["collection_not_found"] if shelves.is_hidden(item, expired=with_trash) else []
        if not shelves.is_hidden(item):
            kinds += [] if item.copies else ["data_released"]
            kinds += ["commit_expired"] if item.contents is None else []
        return with_kinds(lambda: item, tuple(kinds))

    def get() -> dict[str, Any]:
        return ask(holder, "GET", f"/{uuid}", include_trash=with_trash)

    return _asked(act, get, rule, holder)


def end(act: Act) -> object:
    """Move a collection to the trash, restore it, or set the time at which it goes there."""
    lake, holder, ask = act.process.lake(), act.pick(HOLDERS, 0), act.process.asking.collection
    (uuid, item), kind = _collection(act, lake), act.numbers[2] % 4
    date = drawn_date(act)
    calls: dict[int, Callable[[], dict[str, Any]]] = {
        0: lambda: ask(holder, "POST", f"/{uuid}/untrash", ensure_unique_name=True),
        1: lambda: ask(holder, "DELETE", f"/{uuid}"),
        2: lambda: ask(holder, "POST", f"/{uuid}/trash"),
        3: lambda: ask(
            holder,
            "PUT",
            f"/{uuid}",
            {"trash_at": date and date.isoformat()},
            include_trash=True,
            ensure_unique_name=True,
        ),
    }

    def rule(shelves: Shelves) -> Item:
        if kind == 0:
            return shelves.restored(item, unique=True)
        if kind == 3:
            return shelves.changed(item, {"expires_at": stored(date)}, unique=True)
        return shelves.trashed(item)

    return _asked(act, calls[kind], rule, holder)


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
