"""The part of projects, collections and locators: single operations, each compared with its rule.

What collections and locators keep is checked like all that is promised (`knowledge`), and by the
definition of what stays (`definition`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from ebbtide.errors import EbbtideError
from ebbtide.store.collections.contents import (
    ContentChange,
    Files,
    FromCollection,
    FromRef,
    Located,
    Source,
)
from ebbtide.store.lifecycle import ListFilter
from ebbtide.store.objects.locators import Signed
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.simulation.acting import Act
from tests.simulation.choosing import Nothing, named
from tests.simulation.exact import Contents, Refused, View, value
from tests.simulation.knowledge import Checker, Given, micros, value_of
from tests.simulation.looking import look
from tests.simulation.scheduler import Violation
from tests.simulation.shelves import (
    EITHER,
    NOW,
    Declined,
    Item,
    Kind,
    Shelves,
    hash_of,
    read_shelves,
)
from tests.simulation.versions import DATA, PATHS
from tests.simulation.world import LAKE, LEASE, TRASH

NAMES: Final = ("red", "green")
SPANS: Final = (timedelta(minutes=1), LEASE / 2, LEASE, TRASH, timedelta(days=1))
PAGE: Final = 2
PLACES: Final = (("", ""), ("a", "x/a"), ("", "y/"))

Rule = Callable[[Shelves], Item]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a collection is to have, by its sources, and why that may be refused."""

    sources: list[Source]
    files: Contents
    kinds: tuple[str, ...] = ()


# How an operation is compared


def exactly(act: Act, lake: Repository, call: Callable[[], Any], rule: Rule) -> Any:
    """Does it. Where nothing happened beside it, its item is what the rule says then, and all
    others are what they were. Raises Violation."""
    repository_id = lake.info.repository_id
    before = read_shelves(act.checker, repository_id)
    try:
        answer = call()
    except EbbtideError as error:
        if act.is_exact and error.kind not in _both(act, before, rule)[1]:
            raise Violation("answer", f"{error.kind}: {error.message}; not expected") from error
        raise
    if act.is_exact:
        wanted, kinds = _both(act, before, rule)
        if wanted is not None:
            _compare(wanted, before, read_shelves(act.checker, repository_id))
        elif not kinds[-1]:
            raise Violation("answer", f"it should have been refused: {kinds}")
    return answer


def _both(act: Act, before: Shelves, rule: Rule) -> tuple[Item | None, tuple[str, ...]]:
    """What the rule says at the beginning and at the end. Where these differ, anything of both may
    be; the last kind is not empty then."""
    outcomes: list[tuple[Item | None, tuple[str, ...]]] = []
    for now in (before.now, micros(act.world.clock.now)):
        try:
            outcomes.append((rule(replace(before, now=now)), ()))
        except Declined as declined:
            outcomes.append((None, declined.args))
    (item, kinds), (later, more) = outcomes
    if item == later and bool(kinds) == bool(more):
        return item, (*kinds, *more, "")
    return None, (*kinds, *more, "any")


def _compare(wanted: Item, before: Shelves, after: Shelves) -> None:
    new = [each for each in after.items if each not in before.items]
    item_id = wanted.item_id or (new[0] if len(new) == 1 else "")
    expected = {**before.items, item_id: replace(wanted, item_id=item_id)}
    for each in expected.keys() | after.items.keys():
        ours, theirs = expected.get(each), after.items.get(each)
        if ours is None or theirs is None or _dated(ours, theirs, before, after) != ours:
            raise Violation("answer", f"expected {ours}, found {theirs}")


def _dated(ours: Item, theirs: Item, before: Shelves, after: Shelves) -> Item:
    """What was found, with a date of the operation, and a version that may be a new one."""
    if ours.expires_at == NOW and before.now <= (theirs.expires_at or 0) <= after.now:
        theirs = replace(theirs, expires_at=NOW)
    version = before.items[ours.item_id].version if ours.version == EITHER else ours.version
    if ours.version == EITHER and theirs.version in (version, version + 1):
        theirs = replace(theirs, version=EITHER)
    return theirs


# Whom it is about


def _items(act: Act, lake: Repository, kind: Kind) -> list[Item]:
    found = read_shelves(act.checker, lake.info.repository_id).items.values()
    return [each for each in found if each.kind == kind][-6:]


def find_item(act: Act, lake: Repository, kind: Kind, place: int = 0) -> Item:
    return act.newest(_items(act, lake, kind), place)


def drawn_date(act: Act) -> datetime | None:
    """Never, some time in the future, or one that is over."""
    kind, span = act.numbers[3] % 6, SPANS[act.numbers[3] % len(SPANS)]
    if kind < 3:
        return None
    return act.world.clock.now + (-span if kind == 3 else span)


def _is_unique(act: Act) -> bool:
    return act.numbers[2] % 2 == 0


def _loosen(act: Act) -> None:
    """What other parts promise of collections may end: what these keep is computed anew."""
    for name in [each for each in act.known.promises if each.startswith("collection ")]:
        del act.known.promises[name]


# Projects and collections


def make_project(act: Act) -> object:
    """Make a project in another one, or in none."""
    lake, unique = act.process.lake(), _is_unique(act)
    parents = [None, *(each.item_id for each in _items(act, lake, "project"))]
    parent_id, name, date = act.pick(parents, 0), act.pick(NAMES, 1), drawn_date(act)
    new = Item("project", "", parent_id, name, stored(date))
    return exactly(
        act,
        lake,
        lambda: lake.projects.create(
            name, parent_id=parent_id, expires_at=date, ensure_unique_name=unique
        ),
        lambda shelves: shelves.made(new, unique=unique),
    ).project_id


def stored(date: datetime | None) -> int | None:
    return None if date is None else micros(date)


def change_project(act: Act) -> object:
    """Rename a project, move it, or let it expire."""
    lake, unique = act.process.lake(), _is_unique(act)
    item, kind = find_item(act, lake, "project"), act.numbers[1] % 3
    _loosen(act)
    asked: dict[str, Any] = {"name": act.pick(NAMES, 2)}
    if kind == 1:
        asked = {"parent_id": act.pick([None, *_items(act, lake, "project")], 3)}
        asked["parent_id"] = asked["parent_id"] and asked["parent_id"].item_id
    if kind == 2:
        asked = {"expires_at": drawn_date(act)}
    fields = asked | ({"expires_at": stored(asked["expires_at"])} if kind == 2 else {})
    return exactly(
        act,
        lake,
        lambda: lake.projects.update(item.item_id, **asked, ensure_unique_name=unique),
        lambda shelves: shelves.changed(item, fields, unique=unique),
    ).state


def end(act: Act) -> object:
    """Put a project or collection in the trash."""
    lake = act.process.lake()
    kind: Kind = "project" if act.numbers[1] % 4 == 0 else "collection"
    item, store = (
        find_item(act, lake, kind),
        lake.projects if kind == "project" else lake.collections,
    )
    _loosen(act)
    call: Callable[[], Any] = lambda: store.delete(item.item_id)  # noqa: E731
    return exactly(act, lake, call, lambda shelves: shelves.trashed(item)).state


def bring_back(act: Act) -> object:
    """Bring one back from the trash, if there is one, else try with any."""
    lake, unique = act.process.lake(), _is_unique(act)
    kind: Kind = "project" if act.numbers[1] % 4 == 0 else "collection"
    shelves = read_shelves(act.checker, lake.info.repository_id)
    items = _items(act, lake, kind)
    item = act.newest([each for each in items if shelves.state(each) == "trashed"] or items, 0)
    store = lake.projects if kind == "project" else lake.collections
    call: Callable[[], Any] = lambda: store.restore(item.item_id, ensure_unique_name=unique)  # noqa: E731

    def rule(shelves: Shelves) -> Item:
        return shelves.restored(item, unique=unique)

    return exactly(act, lake, call, rule).state


def shelve(act: Act) -> object:
    """Make a collection of new files, of locators, of a ref, or of another collection."""
    lake, unique = act.process.lake(), _is_unique(act)
    project, wanted = find_item(act, lake, "project", 1), _wanted(act, lake)
    name, copies = act.pick(NAMES, 1), int(act.numbers[3] % 7 != 0)
    new = Item("collection", "", project.item_id, name, copies=copies, contents=wanted.files)

    def rule(shelves: Shelves) -> Item:
        return with_kinds(lambda: shelves.made(new, unique=unique), wanted.kinds)

    return exactly(
        act,
        lake,
        lambda: lake.collections.create(
            project.item_id,
            name,
            ContentChange(wanted.sources),
            replication_desired=copies,
            ensure_unique_name=unique,
        ),
        rule,
    ).collection_id


def with_kinds(made: Callable[[], Item], more: tuple[str, ...]) -> Item:
    """What is made, unless it is refused for these or for other reasons."""
    try:
        item = made()
    except Declined as declined:
        raise Declined(*declined.args, *more) from None
    if more:
        raise Declined(*more)
    return item


def _wanted(act: Act, lake: Repository) -> Wanted:
    kind, (prefix, into) = act.numbers[0] % 4, PLACES[act.numbers[3] % len(PLACES)]
    if kind == 0:
        paths = [PATHS[(act.numbers[1] + each) % len(PATHS)] for each in range(act.numbers[2] % 3)]
        data = act.pick(DATA, 3)
        return Wanted(
            [Files([NewObject(path, data) for path in paths])], dict.fromkeys(paths, value(data))
        )
    if kind == 1:
        given = act.newest(act.known.locators, 2)
        ended = given.until <= act.world.clock.now
        late = ("token_expired",) if ended else ()
        return Wanted([Located({"a": given.token})], {"a": given.value}, late)
    if kind == 2 or not _items(act, lake, "collection"):
        commit_id = act.newest(act.known.commits, 2)
        view = look(act.checker, lake.info.repository_id)
        if commit_id not in view.commits:  # of another repository
            raise Nothing
        source: Source = FromRef(commit_id, prefix, into)
        contents = view.committed(commit_id) if view.can_be_read(commit_id) else None
        return _from(source, contents, (), prefix, into)
    item = find_item(act, lake, "collection", 2)
    shelves = read_shelves(act.checker, lake.info.repository_id)
    kinds: tuple[str, ...] = ("collection_not_found",) if shelves.is_hidden(item) else ()
    kinds += () if item.copies else ("data_released",)
    return _from(
        FromCollection(item.item_id, None, prefix, into), item.contents, kinds, prefix, into
    )


def _from(
    source: Source, contents: Contents | None, kinds: tuple[str, ...], prefix: str, into: str
) -> Wanted:
    if contents is None:
        return Wanted([source], {}, (*kinds, "commit_expired"))
    files = {
        into + path.removeprefix(prefix): each
        for path, each in contents.items()
        if path.startswith(prefix)
    }
    return Wanted([source], files, kinds)


def refill(act: Act) -> object:
    """Change the content of a collection, and keep the version before perhaps."""
    lake, wanted = act.process.lake(), _wanted(act, lake=act.process.lake())
    item, replaces = find_item(act, lake, "collection", 3), act.numbers[1] % 4 == 0
    keep = act.numbers[2] % 5 < 2
    _loosen(act)
    act.known.refilled.add(item.item_id)
    removed = [] if replaces else sorted(item.contents or ())[: act.numbers[1] % 2]
    kept = {} if replaces else {p: e for p, e in (item.contents or {}).items() if p not in removed}
    versions = {**item.versions, item.version: item.contents} if keep else item.versions
    changed = item.with_contents({**kept, **wanted.files}, versions, is_kept=keep)

    def rule(shelves: Shelves) -> Item:
        kinds = [*wanted.kinds]
        kinds += ["collection_not_found"] if shelves.is_hidden(item, expired=True) else []
        kinds += ["trashed"] if shelves.state(item) == "trashed" else []
        kinds += ["commit_expired"] if item.contents is None and not replaces else []
        return with_kinds(lambda: changed, tuple(kinds))

    return exactly(
        act,
        lake,
        lambda: lake.collections.update(
            item.item_id, ContentChange(wanted.sources, removed, replaces), keep_version=keep
        ),
        rule,
    ).version


def change_shelved(act: Act) -> object:
    """Rename a collection, move it, let it expire, describe it, or keep its data no longer."""
    lake, unique = act.process.lake(), _is_unique(act)
    item, kind = find_item(act, lake, "collection"), act.numbers[1] % 5
    _loosen(act)
    asked: dict[str, Any] = {"description": f"{act.number}"}
    fields: dict[str, Any] = {}
    if kind == 1:
        fields = asked = {"name": act.pick(NAMES, 2)}
    if kind == 2:
        project_id = find_item(act, lake, "project", 3).item_id
        asked, fields = {"project_id": project_id}, {"parent_id": project_id}
    if kind == 3:
        asked = {"expires_at": drawn_date(act)}
        fields = {"expires_at": stored(asked["expires_at"])}
    if kind == 4:
        asked = {"replication_desired": 0 if item.copies else 2}
        fields = {"copies": asked["replication_desired"]}
    return exactly(
        act,
        lake,
        lambda: lake.collections.update(item.item_id, **asked, ensure_unique_name=unique),
        lambda shelves: shelves.changed(item, fields or {"copies": item.copies}, unique=unique),
    ).state


def drop_version(act: Act) -> object:
    lake = act.process.lake()
    item = act.newest([each for each in _items(act, lake, "collection") if each.versions], 0)
    number = act.pick(sorted(item.versions), 1)
    _loosen(act)
    left = {each: found for each, found in item.versions.items() if each != number}

    def rule(shelves: Shelves) -> Item:
        kinds = ("collection_not_found",) if shelves.is_hidden(item) else ()
        return with_kinds(lambda: replace(item, versions=left), kinds)

    return exactly(act, lake, lambda: lake.collections.drop_version(item.item_id, number), rule)


# Locators


def sign_shelved(act: Act) -> object:
    """Have locators of all of a collection, or of a version of it."""
    lake, began = act.process.lake(), act.world.clock.now
    item = find_item(act, lake, "collection")
    version = act.pick([None, *sorted(item.versions)], 1)
    contents = item.contents if version is None else item.versions[version]

    def rule(shelves: Shelves) -> Item:
        kinds = ["collection_not_found"] if shelves.is_hidden(item) else []
        kinds += ["data_released"] if not item.copies else []
        kinds += ["commit_expired"] if contents is None else []
        return with_kinds(lambda: item, tuple(kinds))

    shelves = read_shelves(act.checker, lake.info.repository_id)
    ends_at = shelves.ends_at(item)
    page = exactly(
        act, lake, lambda: lake.collections.locators(item.item_id, version=version), rule
    )
    for signed in page.entries:
        note_locator(act, lake, signed)
        until = micros(signed.expires_at)
        is_full = began + LEASE <= signed.expires_at <= act.world.clock.now + LEASE
        if act.is_exact and not (until == ends_at if ends_at and not is_full else is_full):
            raise Violation("answer", f"a locator from {began} lasts until {signed.expires_at}")
    return len(page.entries)


def note_locator(act: Act, lake: Repository, signed: Signed, path: str = "a") -> str:
    """Somebody has a locator: its file, whose key this returns, stays until its end."""
    key, until = f"{LAKE}/{signed.entry.address}", signed.expires_at
    name = f"locator {len(act.known.locators)} of {key} until {until}"
    act.known.promise(name, lake.info.repository_id, [key], until)
    act.known.locators.append(Given(signed.locator, path, until, value_of(signed.entry)))
    return key


def sign_shown(act: Act) -> object:
    """Have a locator of what a branch shows: only what is committed can be signed."""
    lake, branch, path = act.process.lake(), act.pick(act.known.branches, 0), act.pick(PATHS, 1)

    def rule(view: View) -> View:
        if path not in view.shown(branch):
            raise Refused(view, "object_not_found")
        if path in view.branches[branch].staged:
            raise Refused(view, "not_committed")
        return view

    act.expects(lake, rule)
    signed = lake.locators.sign_path(branch, path)
    note_locator(act, lake, signed)
    return signed.entry.address


def read_locator(act: Act) -> object:
    """Read by a locator, until its end and no longer."""
    lake, given = act.process.lake(), act.newest(act.known.locators, 0)
    is_good = act.world.clock.now < given.until - timedelta(seconds=1)
    try:
        data = b"".join(lake.locators.read(given.token).pieces)
    except EbbtideError as error:
        if is_good and act.is_exact:
            raise Violation("answer", f"a good locator: {error.message}") from error
        raise
    if value(data)[0] != given.value[0]:
        raise Violation("answer", f"a locator reads {data!r}")
    return data


# Looking


def look_up(act: Act) -> object:
    """Get an item, list what lies beside it, and find a collection by its content."""
    lake = act.process.lake()
    shelves = read_shelves(act.checker, lake.info.repository_id)
    items = [*_items(act, lake, "collection"), *_items(act, lake, "project")]
    item, expired = act.pick(items, 0), act.numbers[1] % 2 == 0
    if not act.is_exact:
        return None
    try:
        _check_got(lake, shelves, item, expired=expired)
        _check_listed(lake, shelves, item.parent_id, expired=expired)
    except Violation:
        # Who slept between two of these readings, or could not read, may have seen something else.
        if act.is_exact:
            raise
    return item.item_id


def check_all(checker: Checker, lake: Repository) -> None:
    """All items are got and listed as they should be. Raises Violation."""
    shelves = read_shelves(checker, lake.info.repository_id)
    for item in shelves.items.values():
        for expired in (False, True):
            _check_got(lake, shelves, item, expired=expired)
    for expired in (False, True):
        _check_listed(lake, shelves, None, expired=expired)


def _check_got(lake: Repository, shelves: Shelves, item: Item, *, expired: bool) -> None:
    get: Callable[..., Any] = (lake.projects if item.kind == "project" else lake.collections).get
    hidden = shelves.is_hidden(item, expired=expired)
    try:
        found = get(item.item_id, include_expired=expired)
    except EbbtideError as error:
        if not hidden or error.kind != f"{item.kind}_not_found":
            raise Violation("answer", f"{item} cannot be got: {error.message}") from error
        return
    path = "/".join(each.name for each in reversed([*shelves.line(item)]))
    ends_at = None if found.ends_at is None else micros(found.ends_at)
    said = (found.path, found.state.value, ends_at)
    if hidden or said != (path, shelves.state(item), shelves.ends_at(item)):
        raise Violation("answer", f"{item} is shown as {said}")
    if item.kind == "collection" and not expired:
        _check_found(lake, shelves, item, path)
    if item.kind == "collection" and item.contents is not None and item.copies:
        _check_content(lake, item, found, expired=expired)


def _check_found(lake: Repository, shelves: Shelves, item: Item, path: str) -> None:
    """A collection is found by its path, and one like it by the hash, a persistent one first."""
    same = [each for each in shelves.items.values() if each.content_hash == item.content_hash]
    states = {shelves.state(each) for each in same if each.kind == "collection"}
    best = "persistent" if "persistent" in states else "expiring"
    try:
        by_hash, by_path = lake.collections.by_hash(item.content_hash), lake.collections.find(path)
    except EbbtideError as error:
        raise Violation("answer", f"{item} cannot be found: {error.message}") from error
    said = by_path.collection_id, by_hash.content_hash, by_hash.state.value
    if said != (item.item_id, item.content_hash, best):
        raise Violation("answer", f"{item} is found as {said}")


def _check_content(lake: Repository, item: Item, found: Any, *, expired: bool) -> None:
    entries = [*lake.collections.walk(item.item_id, include_expired=expired)]
    said = {each.path: (each.checksum, frozenset(each.metadata.items())) for each in entries}
    sizes = {each.checksum: each.size_bytes for each in entries}
    if said != item.contents or found.content_hash != hash_of(item.contents or {}, sizes):
        raise Violation("answer", f"{item} has {said}, {found.content_hash}")


def _check_listed(
    lake: Repository, shelves: Shelves, parent_id: str | None, *, expired: bool
) -> None:
    if parent_id is not None and shelves.is_hidden(shelves.items[parent_id], expired=expired):
        return
    listed = ListFilter(include_expired=expired)
    page: Callable[..., Any] = partial(lake.projects.page, parent_id=parent_id, listed=listed)
    said = _listed(page, "project_id")
    expected = shelves.children(parent_id, "project", expired=expired)
    if parent_id is not None:
        page = partial(lake.collections.page, parent_id, listed=listed)
        said += _listed(page, "collection_id")
        expected += shelves.children(parent_id, "collection", expired=expired)
    if said != expected:
        raise Violation("answer", f"{parent_id} has {said}, and should have {expected}")


def _listed(page: Callable[..., Any], name: str) -> list[str]:
    found: list[Any] = []
    after = ("", "")
    while rows := page(after=after, amount=PAGE):
        found += rows
        after = rows[-1].name, getattr(rows[-1], name)
    return [getattr(each, name) for each in found]


OPERATIONS: Final[Mapping[str, Callable[[Act], object]]] = named(
    *(make_project, change_project, end, bring_back, shelve, refill, change_shelved),
    *(drop_version, sign_shelved, sign_shown, read_locator, look_up),
)

INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(OPERATIONS, "shelve"),
    "shelve": "make project",
    "change project": "make project",
    "read locator": "sign shown",
    "sign shown": "save",
}

PART: Final[Mapping[str, int]] = {
    "save": 3,
    "make project": 2,
    "change project": 2,
    "end": 3,
    "bring back": 3,
    "shelve": 6,
    "refill": 4,
    "change shelved": 4,
    "drop version": 1,
    "sign shelved": 4,
    "sign shown": 2,
    "upload located": 1,
    "read locator": 2,
    "look up": 3,
}
