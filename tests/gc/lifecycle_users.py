"""Users of projects, collections and locators.

Each act is done to the store and to the model. What must refuse it is worked out from the model:
it fails with an error of one of these kinds, or, where there is none, succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import get_ident
from typing import Any, ClassVar, Final

from hypothesis import event
from hypothesis import strategies as st

from ebbtide.errors import EbbtideError
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.store.collections.contents import (
    ContentChange,
    Files,
    FromCollection,
    FromRef,
    Located,
    Source,
)
from ebbtide.store.collections.queries import find_collection
from ebbtide.store.content.reading import iterate_entries
from ebbtide.store.database.commits import find_commits
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.gc.lifecycle_model import Bundle, Folder, Given, LifecycleModel, shifted
from tests.gc.model import Made
from tests.gc.slow_users import SLOW, Steps
from tests.gc.uncommitted_users import SPANS, UploadUsers
from tests.gc.users import PATHS, Act

KINDS: Final[Mapping[str, list[str]]] = {
    "make": ["create"] * 4 + ["project", "create_from"],
    "change": ["update", "update", "update_from", "change", "change", "copies", "drop_version"],
    "end": ["trash", "trash", "trash_project", "expire", "expire_project"],
    "back": ["restore", "restore", "restore_project"],
    "move": ["move", "move_project", "name", "rename_project"],
    "sign": ["sign", "sign", "sign", "sign_ref", "sign_upload", "read"],
    "use": ["use", "use", "use", "read"],
    "look": ["look_up", "list", "same"],
    "version": ["put", "commit", "commit", "branch", "drop", "tag", "drop_tag", "restore_branch"],
    "slow": ["begin", "begin", "finish"],
    "time": ["until", "until", "until", "wait"],
}
NAMES: Final = ("red", "green", "blue")
TEXTS: Final = (b"", b"same", b"other")
SIGNED_REFS: Final = ("main", "main~1", "main~2", "tag-0", "one")


def lifecycle_acts(*groups: str) -> st.SearchStrategy[Act]:
    """Acts of some groups of KINDS; of all of them, if none is named."""
    kinds = [kind for group in groups or KINDS for kind in KINDS[group]]
    return st.builds(
        Act,
        kind=st.sampled_from(kinds),
        first=st.integers(0, 7),
        second=st.integers(0, 7),
        days=st.sampled_from([0.0, 0.5, 2.0]),
        third=st.integers(0, 63),
    )


@dataclass(slots=True)
class Wanted:
    """A wanted content: its `sources` as the store takes them, and its `files` by path (an address,
    or the bytes of a new file). `refused` says which errors must refuse it at an instant.
    `promised_until` is the latest end of the locators among the sources."""

    sources: list[Source]
    files: dict[str, str | bytes]
    refused: Callable[[datetime], dict[str, bool]]
    promised_until: datetime | None = None


@dataclass
class LifecycleUsers(UploadUsers):
    """The users."""

    model: LifecycleModel
    slow_kinds: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "create": SLOW["put"],
        "update": SLOW["commit"],
        "use": SLOW["commit"],
        "update_from": SLOW["commit"],
        "commit": SLOW["commit"],
    }

    # Whom it is about.

    def _commit_id(self, number: int) -> str:
        """Of a commit of a history: content of a collection is no revision."""
        found = [each for each in reversed(self.model.commits) if self._is_history(each)]
        return found[number % len(found)]

    def _is_history(self, commit_id: str) -> bool:
        return commit_id not in self.model.content_ids

    def _folder(self, number: int) -> Folder | None:
        newest = list(reversed(self.model.folders.values()))[:5]
        return newest[number % len(newest)] if newest else None

    def _bundle(self, number: int) -> Bundle | None:
        newest = list(reversed(self.model.bundles.values()))[:6]
        return newest[number % len(newest)] if newest else None

    def _date(self, act: Act) -> datetime | None:
        """Never, or some time in the future, or one that is over."""
        kind = act.third % 6
        if kind < 3:
            return None
        spans = (*SPANS, self.world.settings.lease_ttl, self.world.settings.trash_time)
        span: timedelta = spans[act.third // 6 % len(spans)]
        now: datetime = self.world.now
        return now + (-span if kind == 3 else span)

    def _asked(self, expires_at: datetime | None) -> datetime | None:
        """What is stored for it: nobody expires in the past."""
        return None if expires_at is None else max(expires_at, self.world.now)

    def _attempt(self, call: Callable[[], Any], refused: Mapping[str, bool]) -> Any:
        """What a call answers; None if it must be refused, and is."""
        must = {kind for kind, applies in refused.items() if applies}
        try:
            answer = call()
        except EbbtideError as error:
            assert error.kind in must, f"{error!r}, {must}"
            event(f"refused: {error.kind}")
            return None
        assert not must, must
        return answer

    def _hidden(self, item: Folder | Bundle, *, expired: bool = False) -> bool:
        return not self.model.is_visible(item, self.world.now, expired=expired)

    # Projects.

    def _project(self, act: Act) -> None:
        parent = self._folder(act.first) if act.third % 3 else None
        new = Folder("", None if parent is None else parent.item_id, NAMES[act.second % 3])
        now, unique = self.world.now, act.third % 5 == 0
        expires_at = self._date(act) if act.second > 4 else None
        taken = self.model.is_taken(new, new.parent_id, new.name, now)
        made = self._attempt(
            lambda: self.world.lake.projects.create(
                new.name, parent_id=new.parent_id, expires_at=expires_at, ensure_unique_name=unique
            ),
            {
                "project_not_found": parent is not None and self._hidden(parent),
                "project_exists": taken and not unique,
            },
        )
        if made is not None:
            assert made.name == self._unique(new, new.parent_id, new.name)
            new.item_id, new.name = made.project_id, made.name
            new.expires_at = self._asked(expires_at)
            self.model.folders[new.item_id] = new

    def _unique(self, item: Folder | Bundle, parent_id: str | None, name: str) -> str:
        """The first of its names that is free."""
        now, number, found = self.world.now, 1, name
        while self.model.is_taken(item, parent_id, found, now):
            number += 1
            found = f"{name} ({number})"
        return found

    def _change_project(self, item: Folder, *, unique: bool = False, **asked: Any) -> None:
        changed = self._changed(
            item,
            lambda: self.world.lake.projects.update(
                item.item_id, **asked, ensure_unique_name=unique
            ),
            asked,
            unique=unique,
            parent_field="parent_id",
            kind="project",
        )
        if changed is not None:
            item.name, item.parent_id = changed.name, changed.parent_id

    def _changed(
        self,
        item: Folder | Bundle,
        call: Callable[[], Any],
        asked: Mapping[str, Any],
        *,
        unique: bool,
        parent_field: str,
        kind: str,
        more: Mapping[str, bool] | None = None,
    ) -> Any:
        """Change an item; what it is then, or None."""
        model, now = self.model, self.world.now
        parent_id, name = asked.get(parent_field, item.parent_id), asked.get("name", item.name)
        wanted = self._asked(asked["expires_at"]) if "expires_at" in asked else item.expires_at
        was_over = model.own_state(item, now) in ("trashed", "gone")
        will_be_over = model.state_of(wanted, now) in ("trashed", "gone")
        is_placed = not will_be_over and (
            was_over or (parent_id, name) != (item.parent_id, item.name)
        )
        taken = is_placed and model.is_taken(item, parent_id, name, now)
        parent = None if parent_id is None else model.folders[parent_id]
        into = parent if parent_id != item.parent_id else None
        above = model.state_above(item, now)
        changed = self._attempt(
            call,
            {
                f"{kind}_not_found": self._hidden(item, expired=True),
                "trashed": above == "trashed" or (was_over and bool(set(asked) - {"expires_at"})),
                "project_not_found": (into is not None and self._hidden(into))
                or (kind == "project" and self._hidden(item, expired=True)),
                "project_cycle": into is not None
                and any(each is item for each in model.line(into)),
                f"{kind}_exists": taken and not unique,
                **(more or {}),
            },
        )
        if changed is not None:
            expected = self._unique(item, parent_id, name) if is_placed else name
            assert changed.name == expected
            assert changed.expires_at == wanted
            item.expires_at = wanted
        return changed

    def _rename_project(self, act: Act) -> None:
        item = self._folder(act.first)
        if item is not None:
            self._change_project(item, name=NAMES[act.second % 3], unique=act.third % 3 == 0)

    def _move_project(self, act: Act) -> None:
        item, parent = self._folder(act.first), self._folder(act.second)
        if item is not None and parent is not None:
            parent_id = parent.item_id if act.third % 4 else None
            self._change_project(item, parent_id=parent_id, unique=act.third % 3 == 0)

    def _expire_project(self, act: Act) -> None:
        item = self._folder(act.first)
        if item is not None:
            self._change_project(item, expires_at=self._date(act))

    def _trash_project(self, act: Act) -> None:
        item = self._folder(act.first)
        if item is None:
            return
        found = self._attempt(
            lambda: self.world.lake.projects.delete(item.item_id),
            {"project_not_found": self._hidden(item)},
        )
        if found is not None:
            item.expires_at = self.world.now
            self.world.clock.advance(timedelta(microseconds=act.third % 2))

    def _restore_project(self, act: Act) -> None:
        item = self._trashed(list(self.model.folders.values()), act.first)
        if isinstance(item, Folder):
            self._restored(item, self.world.lake.projects.restore, unique=act.third % 2 == 0)

    def _trashed(self, items: list[Any], number: int) -> Folder | Bundle | None:
        """One that is in the trash if there is such, else any."""
        now = self.world.now
        found = [item for item in items if self.model.state(item, now) == "trashed"] or items
        return found[number % len(found)] if found else None

    def _restored(
        self, item: Folder | Bundle, restore: Callable[..., Any], *, unique: bool
    ) -> None:
        """What is in the trash comes back, and what is not is said to be there."""
        model, now = self.model, self.world.now
        hidden = self._hidden(item, expired=True)
        kind = "project" if isinstance(item, Folder) else "collection"
        is_trashed = model.state(item, now) == "trashed"
        own = model.own_state(item, now) in ("trashed", "gone")
        above = model.state_above(item, now) == "trashed"
        taken = own and model.is_taken(item, item.parent_id, item.name, now)
        found = self._attempt(
            lambda: restore(item.item_id, ensure_unique_name=unique),
            {
                f"{kind}_not_found": hidden,
                "trashed": is_trashed and above,
                f"{kind}_exists": taken and not unique if is_trashed else not hidden,
            },
        )
        if found is not None and is_trashed:
            item.name, item.expires_at = self._unique(item, item.parent_id, item.name), None
            assert found.name == item.name

    # Collections, made and changed.

    def _create(self, act: Act) -> Steps:
        """Of new files, or of none."""
        yield from self._made_of(act, self._new_files(act))

    def _use(self, act: Act) -> Steps:
        """Of locators, whether they are still good or not."""
        yield from self._made_of(act, self._located(act))

    def _create_from(self, act: Act) -> Steps:
        """Of a branch, a commit, or another collection."""
        wanted = self._from_ref(act) if act.third % 2 else self._from_bundle(act)
        if wanted is not None:
            yield from self._made_of(act, wanted)

    def _update(self, act: Act) -> Steps:
        yield from self._updated(act, self._new_files(act))

    def _update_from(self, act: Act) -> Steps:
        """With locators, or from somewhere else."""
        wanted: Wanted | None = self._located(act)
        if act.third % 3 == 0:
            wanted = self._from_ref(act)
        elif act.third % 3 == 1:
            wanted = self._from_bundle(act)
        if wanted is not None:
            yield from self._updated(act, wanted)

    def _new_files(self, act: Act) -> Wanted:
        paths = [PATHS[(act.second + step) % len(PATHS)] for step in range(act.third % 3)]
        text = TEXTS[act.first % 3] or self._data()
        files: dict[str, str | bytes] = dict.fromkeys(paths, text)
        return Wanted([Files([NewObject(path, text) for path in paths])], files, lambda _: {})

    def _located(self, act: Act) -> Wanted:
        given = [self._given(act.first), self._given(act.first + 1 + act.third % 2)]
        chosen = dict(zip(PATHS[act.second % 4 :], [each for each in given if each], strict=False))
        return Wanted(
            [Located({path: each.token for path, each in chosen.items()})],
            {path: each.address for path, each in chosen.items()},
            lambda now: {"token_expired": any(each.until <= now for each in chosen.values())},
            promised_until=max((each.until for each in chosen.values()), default=None),
        )

    def _given(self, number: int) -> Given | None:
        newest = list(reversed(self.model.given))[:6]
        return newest[number % len(newest)] if newest else None

    def _from_ref(self, act: Act) -> Wanted:
        commit_id = self._commit_id(act.second)
        prefix, into = (("", ""), ("a", "x/a"), ("", "y/"))[act.third // 3 % 3]
        contents = self.model.commits[commit_id].contents
        return Wanted(
            [FromRef(commit_id, prefix, into)],
            _below(contents, prefix, into),
            lambda _: {"commit_expired": bool(self.model.runs(commit_id))},
        )

    def _from_bundle(self, act: Act) -> Wanted | None:
        source = self._bundle(act.second)
        if source is None:
            return None
        prefix, into = (("", ""), ("a", "z/a"))[act.third // 3 % 2]
        content_id, was_hidden = source.content_id, self._hidden(source)
        had_data = source.copies > 0
        return Wanted(
            [FromCollection(source.item_id, None, prefix, into)],
            _below(self.model.commits[content_id].contents, prefix, into),
            lambda _: {
                "collection_not_found": was_hidden,
                "data_released": not had_data,
                "commit_expired": bool(self.model.runs(content_id)),
            },
        )

    def _made_of(self, act: Act, wanted: Wanted) -> Steps:
        """Make a collection of it."""
        parent = self._folder(act.first)
        if parent is None:
            self._project(Act("project", 0, 0, 0.0, 0))
            parent = self._folder(0)
            assert parent is not None
        lake: Repository = self.world.lake
        name, unique = NAMES[act.second % 3], act.third % 2 == 0
        copies = int(act.third % 7 != 0)
        expires_at = self._date(act) if act.third > 40 else None
        new = Bundle("", parent.item_id, name, "", copies=copies)

        def refused() -> dict[str, bool]:
            now = self.world.now
            return {
                "project_not_found": self._hidden(parent),
                "collection_exists": not unique
                and self.model.is_taken(new, new.parent_id, name, now),
                **wanted.refused(now),
                **self._late(),
            }

        def call() -> Any:
            return lake.collections.create(
                new.parent_id,
                name,
                ContentChange(wanted.sources),
                replication_desired=copies,
                expires_at=expires_at,
                ensure_unique_name=unique,
            )

        self.mine = {}
        before = refused()
        try:
            made = yield call
        except EbbtideError as error:
            self._refused(error, before, refused())
            return
        assert not any(before.values()), before
        assert not any(refused().values()), refused()
        new.item_id, new.name = made.collection_id, made.name
        new.expires_at = self._asked(expires_at)
        self.model.bundles[new.item_id] = new
        self._note(new, wanted.files, promised_until=wanted.promised_until)

    def _late(self) -> dict[str, bool]:
        """What refuses those whose registrations have ended."""
        kinds = ("write_expired", "storage_error", "missing_tree", "missing_node")
        return dict.fromkeys(kinds, self._too_late)

    def _refused(self, error: EbbtideError, *reasons: Mapping[str, bool]) -> None:
        """It is one of those that applied when the act began, or that apply now."""
        kinds = {kind for each in reasons for kind, applies in each.items() if applies}
        # The storage's clock is compared with the date of a file that a slow user wrote.
        kinds.add("clock_skew")
        assert error.kind in kinds, f"{error!r}, {kinds}"
        event(f"refused: {error.kind}")

    def _updated(self, act: Act, wanted: Wanted) -> Steps:
        """Change the content of a collection."""
        bundle = self._bundle(act.first)
        if bundle is None:
            return
        lake: Repository = self.world.lake
        base_id, replaces = bundle.content_id, act.third % 4 == 0
        base = dict(self.model.commits[base_id].contents)
        removed = [] if replaces else sorted(base)[: act.second % 2]
        keep = act.third % 5 < 2
        files: dict[str, str | bytes] = {} if replaces else {**base}
        for path in removed:
            del files[path]
        files.update(wanted.files)

        def refused() -> dict[str, bool]:
            now = self.world.now
            closed = not replaces and bool(self.model.runs(base_id))
            reasons = {
                "collection_not_found": self._hidden(bundle, expired=True),
                "trashed": self.model.state(bundle, now) == "trashed",
                "collection_changed": bundle.content_id != base_id,
                "commit_expired": closed,
            }
            for kind, applies in {**wanted.refused(now), **self._late()}.items():
                reasons[kind] = applies or reasons.get(kind, False)
            return reasons

        def call() -> Any:
            return lake.collections.update(
                bundle.item_id,
                ContentChange(wanted.sources, removed, replaces),
                keep_version=keep,
            )

        self.mine = {}
        before = refused()
        try:
            made = yield call
        except EbbtideError as error:
            self._refused(error, before, refused())
            return
        assert not any(before.values()), before
        assert not any(refused().values()), refused()
        self._renumber(bundle, made, keep=keep)
        self._note(bundle, files, promised_until=wanted.promised_until)

    def _renumber(self, bundle: Bundle, made: Any, *, keep: bool) -> None:
        if keep:
            bundle.versions[bundle.version] = bundle.content_id
        if keep or made.version != bundle.version:
            bundle.version += 1
        assert made.version == bundle.version

    def _note(
        self, bundle: Bundle, files: Mapping[str, str | bytes], *, promised_until: datetime | None
    ) -> None:
        """Tell the model what content a collection has now: what it was made of lies where it lay,
        and what is new at addresses of its own."""
        context = self.world.lake.context
        with context.metadata.snapshot() as tx:
            row = find_collection(tx, bundle.item_id)
            assert row is not None
            record = find_commits(tx, context.repository_id, [row.content_id])[row.content_id]
        content_id = record.commit_id
        # Not through the collection, which may be gone at once.
        walked = iterate_entries(context.storage, context.tree_of(record))
        contents = {entry.path: entry.address for entry in walked}
        assert contents.keys() == files.keys()
        for path, found in files.items():
            if isinstance(found, bytes):
                assert self.model.files[contents[path]] == found
            else:
                assert contents[path] == found, "no bytes are moved"
        before, now = bundle.content_id, self.world.now
        if before and before != content_id:
            self.model.left.append((before, now))
        if promised_until is not None:
            # Whatever becomes of it: it was given what is promised to whoever has the locator.
            self.model.raise_lease(content_id, until=promised_until, raised_to=promised_until)
        bundle.content_id = content_id
        if content_id not in self.model.commits:
            self.model.commits[content_id] = Made((), record.created_at, contents)
            self.model.content_ids.add(content_id)
            tree = context.tree_of(record)
            ranges = (info.address for info in tree.ranges)
            self.model.pointers[content_id] = frozenset([tree.address, *ranges])
        assert row.content_hash == self.model.hash_of(bundle)
        sizes = [len(self.model.files[address]) for address in contents.values()]
        assert (row.file_count, row.size_bytes) == (len(sizes), sum(sizes))

    def _change_collection(self, bundle: Bundle, *, unique: bool = False, **asked: Any) -> None:
        wakes = asked.get("replication_desired", 0) > 0 and bundle.copies == 0
        changed = self._changed(
            bundle,
            lambda: self.world.lake.collections.update(
                bundle.item_id, **asked, ensure_unique_name=unique
            ),
            asked,
            unique=unique,
            parent_field="project_id",
            kind="collection",
            more={"commit_expired": wakes and bool(self.model.runs(bundle.content_id))},
        )
        if changed is None:
            return
        bundle.name, bundle.parent_id = changed.name, changed.project_id
        if bundle.copies and not changed.replication_desired:
            # What was signed until now was promised for a lease.
            self.model.left += [(each, self.world.now) for each in bundle.content_ids]
        bundle.copies = changed.replication_desired

    def _change(self, act: Act) -> None:
        bundle = self._bundle(act.first)
        if bundle is not None:
            self._change_collection(bundle, description=f"{act.third}")

    def _copies(self, act: Act) -> None:
        """Keep the data no longer, or again."""
        bundle = self._bundle(act.first)
        if bundle is not None:
            self._change_collection(bundle, replication_desired=0 if bundle.copies else 2)

    def _name(self, act: Act) -> None:
        bundle = self._bundle(act.first)
        if bundle is not None:
            self._change_collection(bundle, name=NAMES[act.second % 3], unique=act.third % 2 == 0)

    def _move(self, act: Act) -> None:
        bundle, parent = self._bundle(act.first), self._folder(act.second)
        if bundle is not None and parent is not None:
            self._change_collection(bundle, project_id=parent.item_id, unique=act.third % 2 == 0)

    def _expire(self, act: Act) -> None:
        bundle = self._bundle(act.first)
        if bundle is not None:
            self._change_collection(bundle, expires_at=self._date(act), unique=act.third % 2 == 0)

    def _trash(self, act: Act) -> None:
        bundle = self._bundle(act.first)
        if bundle is None:
            return
        found = self._attempt(
            lambda: self.world.lake.collections.delete(bundle.item_id),
            {"collection_not_found": self._hidden(bundle)},
        )
        if found is not None:
            bundle.expires_at = self.world.now
            self.world.clock.advance(timedelta(microseconds=act.third % 2))

    def _restore(self, act: Act) -> None:
        item = self._trashed(list(self.model.bundles.values()), act.first)
        if isinstance(item, Bundle):
            self._restored(item, self.world.lake.collections.restore, unique=act.third % 2 == 0)

    def _restore_branch(self, act: Act) -> None:
        super()._restore(act)

    def _drop_version(self, act: Act) -> None:
        bundle = self._bundle(act.first)
        if bundle is None or not bundle.versions:
            return
        number = sorted(bundle.versions)[act.second % len(bundle.versions)]
        hidden = self._hidden(bundle)
        self._attempt(
            lambda: self.world.lake.collections.drop_version(bundle.item_id, number),
            {"collection_not_found": hidden},
        )
        if not hidden:
            self.model.left.append((bundle.versions.pop(number), self.world.now))

    # Locators.

    def _sign(self, act: Act) -> None:
        """All of a collection, or of a version of it."""
        bundle = self._bundle(act.first)
        if bundle is None:
            return
        version, content_id = None, bundle.content_id
        if bundle.versions and act.third % 3 == 0:
            version = sorted(bundle.versions)[act.second % len(bundle.versions)]
            content_id = bundle.versions[version]
        page = self._attempt(
            lambda: self.world.lake.collections.locators(bundle.item_id, version=version),
            {
                "collection_not_found": self._hidden(bundle),
                "data_released": bundle.copies == 0,
                "commit_expired": bool(self.model.runs(content_id)),
            },
        )
        if page is None:
            return
        now, ends_at = self.world.now, self.model.ends_at(bundle)
        until = now + self.model.lease_ttl
        until = until if ends_at is None else min(until, ends_at)
        self.model.lease(content_id, now, ends_at_most=ends_at)
        contents = self.model.commits[content_id].contents
        assert {each.entry.path: each.entry.address for each in page.entries} == contents
        for signed in page.entries:
            assert signed.expires_at == until
            self.model.given.append(Given(signed.locator, signed.entry.address, until))

    def _sign_ref(self, act: Act) -> None:
        """An object of a branch, an older commit, or a tag."""
        ref = SIGNED_REFS[act.first % len(SIGNED_REFS)]
        name = ref.partition("~")[0]
        head = self.model.branches.get(name) or self.model.tags.get(name)
        if head is None:
            return
        commit_id = head.commit_id
        for _ in range(int(ref.partition("~")[2] or 0)):
            parent_ids = self.model.commits[commit_id].parent_ids
            if not parent_ids or commit_id in self.model.forgotten:
                return
            commit_id = parent_ids[0]
        is_plain_branch = name in self.model.branches and ref == name
        shown = (
            self.model.shown(head) if is_plain_branch else self.model.commits[commit_id].contents
        )
        paths = sorted(shown) if shown and act.third % 4 else PATHS
        path = paths[act.second % len(paths)]
        staged = is_plain_branch and any(path in layer for layer in head.layers)
        signed = self._attempt(
            lambda: self.world.lake.locators.sign_path(ref, path),
            {
                "object_not_found": path not in shown,
                "not_committed": path in shown and staged,
                "commit_expired": bool(self.model.runs(commit_id)),
            },
        )
        if signed is None:
            return
        now = self.world.now
        self.model.lease(commit_id, now)
        assert signed.entry.address == shown[path]
        assert signed.expires_at == now + self.model.lease_ttl
        self.model.given.append(Given(signed.locator, signed.entry.address, signed.expires_at))

    def _sign_upload(self, _act: Act) -> None:
        """A new object that nothing refers to yet."""
        data = self._data()
        signed = self.world.lake.locators.upload(data)
        self.mine = {}
        self._published()
        assert signed.expires_at == self.world.now + self.model.lease_ttl
        self.model.uploads[signed.entry.address] = signed.expires_at
        self.model.given.append(Given(signed.locator, signed.entry.address, signed.expires_at))

    def _published(self) -> None:
        """Nothing that this thread wrote is being written any more."""
        self.model.writing.pop(get_ident(), None)

    def _read(self, act: Act) -> None:
        """What a locator promises is there until it ends."""
        given = self._given(act.first)
        if given is None:
            return
        found = self._attempt(
            lambda: self.world.lake.locators.read(given.token),
            {"token_expired": given.until <= self.world.now},
        )
        if found is not None:
            assert b"".join(found.pieces) == self.model.files[given.address]

    # Looking.

    def _look_up(self, act: Act) -> None:
        """One by its id, and by its path."""
        items: list[Folder | Bundle] = [*self.model.bundles.values(), *self.model.folders.values()]
        if items:
            item = items[-1 - act.first % len(items)]
            for expired in (False, True):
                self.check_got(item, expired=expired)
            self._find(item, expired=act.third % 2 == 0)

    def check_got(self, item: Folder | Bundle, *, expired: bool) -> None:
        """What the store says of one is what the model says."""
        lake, kind = self.world.lake, "project" if isinstance(item, Folder) else "collection"
        get = lake.projects.get if isinstance(item, Folder) else lake.collections.get
        found = self._attempt(
            lambda: get(item.item_id, include_expired=expired),
            {f"{kind}_not_found": self._hidden(item, expired=expired)},
        )
        if found is not None:
            assert found.state.value == self.model.state(item, self.world.now)
            assert (found.expires_at, found.ends_at) == (item.expires_at, self.model.ends_at(item))
            assert found.path == "/".join(each.name for each in reversed([*self.model.line(item)]))
            if isinstance(item, Bundle):
                assert found.content_hash == self.model.hash_of(item)
                assert found.version == item.version
                assert found.replication_desired == item.copies

    def _find(self, item: Folder | Bundle, *, expired: bool) -> None:
        """By a path, in which each name means the one that is there, else the one in the trash."""
        lake, model = self.world.lake, self.model
        line = list(reversed([*model.line(item)]))
        path = "/".join(each.name for each in line)
        find = lake.projects.find if isinstance(item, Folder) else lake.collections.find
        meant, parent_id, refused = None, None, ""
        for each in line:
            kin: list[Any] = list(
                (model.folders if isinstance(each, Folder) else model.bundles).values()
            )
            named = [k for k in kin if k.parent_id == parent_id and k.name == each.name]
            live = [
                k for k in named if model.own_state(k, self.world.now) in ("persistent", "expiring")
            ]
            trashed = [k for k in named if model.own_state(k, self.world.now) == "trashed"]
            choice = live or (trashed if expired else [])
            kind = "project" if isinstance(each, Folder) else "collection"
            if len(choice) != 1:
                refused = "ref_ambiguous" if choice else f"{kind}_not_found"
                break
            meant = choice[0]
            parent_id = meant.item_id
        found = self._attempt(lambda: find(path, include_expired=expired), {refused: bool(refused)})
        if found is not None:
            assert meant is not None
            got = found.project_id if isinstance(item, Folder) else found.collection_id
            assert got == meant.item_id

    def _list(self, act: Act) -> None:
        """What lies in a project, or in none."""
        folder, expired = self._folder(act.first), act.third % 2 == 0
        if folder is not None:
            self.check_listed(folder, expired=expired)
        found = self.world.lake.projects.page(include_expired=expired)
        assert [each.project_id for each in found] == self._expected(
            None, expired=expired, kin=list(self.model.folders.values())
        )

    def check_listed(self, folder: Folder, *, expired: bool) -> None:
        """Collections and projects in it."""
        lake, model = self.world.lake, self.model
        refused = {"project_not_found": self._hidden(folder, expired=expired)}
        bundles = self._attempt(
            lambda: lake.collections.page(folder.item_id, include_expired=expired), refused
        )
        folders = self._attempt(
            lambda: lake.projects.page(parent_id=folder.item_id, include_expired=expired), refused
        )
        if bundles is None:
            return
        assert [each.collection_id for each in bundles] == self._expected(
            folder.item_id, expired=expired, kin=list(model.bundles.values())
        )
        assert [each.project_id for each in folders] == self._expected(
            folder.item_id, expired=expired, kin=list(model.folders.values())
        )
        for each in bundles:
            item = model.bundles[each.collection_id]
            assert each.state is LifecycleState(model.state(item, self.world.now))

    def _expected(self, parent_id: str | None, *, expired: bool, kin: list[Any]) -> list[str]:
        found = [
            (item.name, item.item_id)
            for item in kin
            if item.parent_id == parent_id and not self._hidden(item, expired=expired)
        ]
        return [item_id for _, item_id in sorted(found)]

    def _same(self, act: Act) -> None:
        """Another collection of the same content, the best that there is."""
        bundle, expired = self._bundle(act.first), act.third % 2 == 0
        if bundle is None:
            return
        wanted, now = self.model.hash_of(bundle), self.world.now
        states = {
            self.model.state(each, now)
            for each in self.model.bundles.values()
            if self.model.hash_of(each) == wanted
        }
        order = ["persistent", "expiring", *(["trashed"] if expired else [])]
        best = [state for state in order if state in states]
        found = self._attempt(
            lambda: self.world.lake.collections.by_hash(wanted, include_expired=expired),
            {"collection_not_found": not best},
        )
        if found is not None:
            assert found.state.value == best[0]
            assert self.model.hash_of(self.model.bundles[found.collection_id]) == wanted

    # Time.

    def _until(self, act: Act) -> None:
        """To an instant at which something changes by itself, or just before or behind it."""
        now: datetime = self.world.now
        coming = sorted(
            instant
            for instant in (shifted(each, act.third) for each in self.model.instants())
            if instant > now
        )
        if coming:
            self.world.clock.advance(coming[min(act.first // 2, len(coming) - 1)] - now)


def _below(contents: Mapping[str, str], prefix: str, into: str) -> dict[str, str | bytes]:
    return {
        into + path.removeprefix(prefix): address
        for path, address in contents.items()
        if path.startswith(prefix)
    }
