"""Clients of Arvados over HTTP, and a model of what the server promised to them.

Every signature that a client got is a promise until its expiry. So is every block of a collection
that is not gone, and of its kept versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from ebbtide.errors import Failed
from ebbtide.store.arvados.manifests import parse_manifest
from ebbtide.store.reclaim.reclaimer import Reclaimer
from tests.support.arvados import md5
from tests.support.memory import Moment, Stored, Watcher
from tests.support.memory_world import MemoryWorld

COLLECTIONS: Final = "/arvados/v1/collections"
BLOCKS: Final = (b"one", b"two two", b"three three three")
BY_MD5: Final = {md5(data): data for data in BLOCKS}
MANIFEST: Final = "manifest"
SECOND: Final = timedelta(seconds=1)
ENDED: Final = ("token_expired", "write_expired")
"""Errors of a request that took so long that a promise which it relies on ended."""
OVERTAKEN: Final = ("collection_not_found", "collection_changed", "trashed", "collection_exists")
"""Errors of a request during which others changed the same collection."""


@dataclass(frozen=True, slots=True)
class Act:
    """What the client `who` does. `choice` decides with which of the things that there are."""

    name: str
    who: int = 0
    choice: int = 0
    minutes: int = 0


@dataclass(frozen=True, slots=True)
class Signature:
    """A locator that a client got, with its expiry and the bytes that it promises."""

    who: int
    locator: str
    data: bytes

    @property
    def ends_at(self) -> datetime:
        """The expiry, which is in the locator."""
        return datetime.fromtimestamp(int(self.locator.rpartition("@")[2], 16), UTC)


@dataclass(slots=True)
class Kept:
    """A collection: the blocks of each version that is kept, and of the present `version`."""

    uuid: str
    version: int
    blocks: dict[int, list[bytes]]
    trash_at: datetime | None
    keeps_version: bool = False


@dataclass
class Hooks(Watcher):
    """Lets something happen once, at a moment of a put or after a delete. A put may fail."""

    at_put: Callable[[Moment], None] | None = None
    at_delete: Callable[[], None] | None = None

    def putting(self, key: str, moment: Moment) -> None:
        """See `Watcher.putting`."""
        del key
        if self.at_put is not None:
            self.at_put(moment)

    def deleted(self, key: str, stored: Stored) -> None:
        """See `Watcher.deleted`."""
        del key, stored
        if self.at_delete is not None:
            self.at_delete()


@dataclass
class Clients:
    """The clients of one world, each with a token of its own."""

    world: MemoryWorld
    http: list[httpx.Client]
    hooks: Hooks = field(default_factory=Hooks)
    signatures: list[Signature] = field(default_factory=list)
    manifests: list[tuple[int, list[Signature]]] = field(default_factory=list)
    """The manifests that clients read, as the client and the signatures."""
    kept: dict[str, Kept] = field(default_factory=dict)
    is_disturbed: bool = False
    """Whether something else happened during the request, or the storage failed."""
    done: int = 0
    refused: int = 0

    @property
    def now(self) -> datetime:
        """The time of all clocks."""
        return self.world.now

    def do(self, act: Act) -> None:
        """Sends one request, and compares the answer with the model."""
        self.done += 1
        getattr(self, act.name)(act)

    @contextmanager
    def disturbed(self, moment: Moment, work: Callable[[], None]) -> Iterator[None]:
        """In the block, something else happens once, at the first such moment of a put."""

        def at_put(found: Moment) -> None:
            if found == moment:
                self.hooks.at_put = None
                try:
                    work()
                except Failed:
                    raise
                except BaseException as error:  # the server would answer with 500
                    failures.append(error)
                    raise
                finally:
                    self.is_disturbed = True

        failures: list[BaseException] = []
        self.hooks.at_put = at_put
        try:
            yield
        finally:
            self.hooks.at_put = None
            self.is_disturbed = False
            if failures:
                raise failures[0]

    # What clients do.

    def put(self, act: Act) -> None:
        """Writes a block."""
        data, began = BLOCKS[act.choice % len(BLOCKS)], self.now
        answer = self.http[act.who].put(f"/{md5(data)}", content=data)
        if self._went_well(answer, ENDED):
            signature = Signature(act.who, answer.text.rstrip("\n"), data)
            assert signature.locator.startswith(f"{md5(data)}+{len(data)}+")
            self._signed(signature, began, None)

    def put_damaged(self, act: Act) -> None:
        """Writes bytes that are not those of the hash."""
        data = BLOCKS[act.choice % len(BLOCKS)]
        answer = self.http[act.who].put(f"/{md5(data)}", content=data[::-1] + b"!")
        self._refused(answer, 422, "checksum_mismatch")

    def read(self, act: Act) -> None:
        """Reads a block, or asks for its size; also with the token of another client."""
        signature = self._signature(act)
        if signature is None:
            return
        method = "HEAD" if act.minutes % 2 else "GET"
        answer = self.http[act.who].request(method, f"/{signature.locator}")
        if signature.who != act.who:
            self._forbidden(answer, "token_invalid")
        elif signature.ends_at <= self.now:
            self._forbidden(answer, "token_expired")
        else:
            assert answer.status_code == 200, answer.text
            assert int(answer.headers["content-length"]) == len(signature.data)
            assert method == "HEAD" or answer.content == signature.data

    def create(self, act: Act) -> None:
        """Makes a collection of signed blocks, which may have ended."""
        found = self._own_signatures(act)
        fields: dict[str, Any] = {"name": "c", "manifest_text": _manifest(found)}
        if act.choice % 3 == 0:
            fields["trash_at"] = self._later(act).isoformat()
        answer, began = self._save("POST", COLLECTIONS, act.who, fields, found)
        if answer is not None:
            kept = Kept(answer["uuid"], 1, {1: _data(found)}, _trash_at(answer))
            self.kept[kept.uuid] = kept
            self._shown(act.who, kept, answer, began)

    def create_again(self, act: Act) -> None:
        """Makes a collection of a manifest that was read before, perhaps long ago."""
        mine = [found for who, found in self.manifests if who == act.who]
        if not mine:
            return
        found = mine[act.choice % len(mine)]
        fields = {"name": "again", "manifest_text": _manifest(found)}
        answer, began = self._save("POST", COLLECTIONS, act.who, fields, found)
        if answer is not None:
            kept = Kept(answer["uuid"], 1, {1: _data(found)}, _trash_at(answer))
            self.kept[kept.uuid] = kept
            self._shown(act.who, kept, answer, began)

    def steal(self, act: Act) -> None:
        """Makes a collection of a locator that another client got."""
        others = [each for each in self.signatures if each.who != act.who]
        if others:
            fields = {"manifest_text": _manifest([others[act.choice % len(others)]])}
            answer = self.http[act.who].post(COLLECTIONS, json={"collection": fields})
            self._refused(answer, 422, "token_invalid")

    def show(self, act: Act) -> None:
        """Reads a collection. If it is not in the trash, its manifest is signed."""
        kept = self._collection(act)
        if kept is None:
            return
        began, with_trash = self.now, act.minutes % 2 == 1
        answer = self.http[act.who].get(
            f"{COLLECTIONS}/{kept.uuid}", params={"include_trash": with_trash}
        )
        if self._is_live(kept):
            assert answer.status_code == 200, answer.text
            self._shown(act.who, kept, answer.json(), began)
        elif with_trash and not self._is_gone(kept):
            assert answer.status_code == 200, answer.text
            assert "manifest_text" not in answer.json()
        else:
            self._refused(answer, 404, "collection_not_found")

    def update(self, act: Act) -> None:
        """Gives a collection other blocks. The present ones stay if the version is kept."""
        kept = self._collection(act)
        if kept is None:
            return
        found = self._own_signatures(act)
        fields: dict[str, Any] = {"manifest_text": _manifest(found)}
        if act.minutes % 2:
            fields["preserve_version"] = True
        url = f"{COLLECTIONS}/{kept.uuid}"
        answer, began = self._save("PUT", url, act.who, fields, found, kept)
        if answer is None:
            return
        if not kept.keeps_version and answer["version"] != kept.version:
            del kept.blocks[kept.version]
        kept.version = answer["version"]
        kept.blocks[kept.version] = _data(found)
        kept.keeps_version = bool(act.minutes % 2)
        self._shown(act.who, kept, answer, began)

    def retime(self, act: Act) -> None:
        """Sets the time at which a collection goes to the trash, or takes it away. This also
        restores it from the trash."""
        kept = self._collection(act)
        if kept is None:
            return
        began, asked = self.now, None if act.minutes % 2 else self._later(act)
        answer = self.http[act.who].put(
            f"{COLLECTIONS}/{kept.uuid}",
            params={"include_trash": True, "ensure_unique_name": True},
            json={"collection": {"trash_at": None if asked is None else asked.isoformat()}},
        )
        if self._is_gone(kept):
            self._refused(answer, 404, "collection_not_found")
            return
        assert answer.status_code == 200, answer.text
        kept.trash_at = asked
        self._shown(act.who, kept, answer.json(), began)

    def trash(self, act: Act) -> None:
        """Moves a collection to the trash."""
        kept = self._collection(act)
        if kept is None:
            return
        http, url = self.http[act.who], f"{COLLECTIONS}/{kept.uuid}"
        answer = http.delete(url) if act.minutes % 2 else http.post(f"{url}/trash")
        if self._is_live(kept):
            assert answer.status_code == 200, answer.text
            kept.trash_at = self.now
        else:
            self._refused(answer, 404, "collection_not_found")

    def untrash(self, act: Act) -> None:
        """Restores a collection from the trash."""
        kept = self._collection(act)
        if kept is None:
            return
        began = self.now
        answer = self.http[act.who].post(
            f"{COLLECTIONS}/{kept.uuid}/untrash", params={"ensure_unique_name": True}
        )
        if self._is_gone(kept):
            self._refused(answer, 404, "collection_not_found")
        elif self._is_live(kept):
            self._refused(answer, 422, "collection_exists")
        else:
            assert answer.status_code == 200, answer.text
            kept.trash_at = None
            self._shown(act.who, kept, answer.json(), began)

    def wait(self, act: Act) -> None:
        """Time passes."""
        self.world.clock.advance(timedelta(minutes=act.minutes))

    def wait_for_an_end(self, act: Act) -> None:
        """Time passes to the second in which a signature ends, or to the one before."""
        coming = sorted({each.ends_at for each in self.signatures if each.ends_at > self.now})
        if coming:
            self.world.clock.now = coming[act.choice % len(coming)] - SECOND * (act.minutes % 2)

    def reclaim(self, act: Act) -> None:
        """A pass of the reclaimer."""
        del act
        Reclaimer(self.world.store).once()

    # What they were promised.

    def check(self) -> None:
        """Everything that is promised can be read, byte for byte. Nothing is signed or leased by
        this."""
        for signature in self.promised():
            answer = self.http[signature.who].get(f"/{signature.locator}")
            assert answer.status_code == 200, (signature, answer.text)
            assert answer.content == signature.data, signature
        for kept in self.kept.values():
            if not self._is_gone(kept):
                self._check_collection(kept)

    def promised(self) -> list[Signature]:
        """The signatures that have not ended: of each locator of a client, the last."""
        last: dict[tuple[int, str], Signature] = {}
        for each in self.signatures:
            named = each.who, each.locator.partition("+A")[0]
            if each.ends_at > self.now and (
                named not in last or last[named].ends_at < each.ends_at
            ):
                last[named] = each
        return list(last.values())

    def addresses(self) -> set[str]:
        """The addresses of the files of all collections that are not gone, and their versions."""
        found = set[str]()
        for kept in self.kept.values():
            for version in () if self._is_gone(kept) else kept.blocks:
                entries = self.world.lake.collections.walk(
                    self._id_of(kept), version=self._earlier(kept, version), include_expired=True
                )
                found |= {entry.address for entry in entries}
        return found

    def _check_collection(self, kept: Kept) -> None:
        collection_id = self._id_of(kept)
        for version, blocks in kept.blocks.items():
            for data in blocks:
                file = self.world.lake.collections.open(
                    collection_id,
                    f"{md5(data)}+{len(data)}",
                    version=self._earlier(kept, version),
                    include_expired=True,
                )
                assert b"".join(file.stream()) == data, (kept, version)

    def _earlier(self, kept: Kept, version: int) -> int | None:
        return None if version == kept.version else version

    def _id_of(self, kept: Kept) -> str:
        found = self.world.lake.arvados_collections.get(kept.uuid, include_expired=True)
        return found.listed.collection_id

    # Answers.

    def _save(
        self,
        method: str,
        url: str,
        who: int,
        fields: dict[str, Any],
        found: list[Signature],
        kept: Kept | None = None,
    ) -> tuple[dict[str, Any] | None, datetime]:
        """Sends a manifest of these signatures. Returns the answer if it was saved, and the time
        at which the request was sent."""
        began, is_live = self.now, kept is None or self._is_live(kept)
        is_valid = all(each.ends_at > began for each in found)
        answer = self.http[who].request(
            method, url, json={"collection": fields}, params={"ensure_unique_name": True}
        )
        if not is_live:
            self._refused(answer, 404, "collection_not_found")
        elif not is_valid:
            self._refused(answer, 422, "token_expired")
        elif self._went_well(answer, (*ENDED, *OVERTAKEN)):
            return dict(answer.json()), began
        return None, began

    def _shown(self, who: int, kept: Kept, answer: dict[str, Any], began: datetime) -> None:
        """Takes note of the signatures in the answer about a collection."""
        assert answer["version"] == kept.version
        assert _trash_at(answer) == kept.trash_at
        assert answer["preserve_version"] == kept.keeps_version
        if not self._is_live(kept):
            assert "manifest_text" not in answer
            return
        found = [
            Signature(who, locator, BY_MD5[locator[:32]])
            for locators in parse_manifest(answer["manifest_text"]).locators.values()
            for locator in locators
        ]
        assert {each.data for each in found} == set(kept.blocks[kept.version])
        for signature in found:
            self._signed(signature, began, kept.trash_at)
        self.manifests.append((who, found))

    def _signed(self, signature: Signature, began: datetime, trash_at: datetime | None) -> None:
        """A signature lasts for a lease, to the second, or until the collection ends."""
        lease = self.world.settings.lease_ttl
        first, last = began + lease - SECOND, self.now + lease
        if trash_at is not None:
            first, last = min(first, trash_at - SECOND), min(last, trash_at)
        assert first < signature.ends_at <= last, (first, signature.ends_at, last)
        self.signatures.append(signature)

    def _went_well(self, answer: httpx.Response, kinds: tuple[str, ...]) -> bool:
        """Whether a request was carried out. It must be, unless something else happened during
        it."""
        if answer.status_code == 200:
            return True
        self.refused += 1
        kind = answer.json()["kind"]
        assert self.is_disturbed and kind in (*kinds, "storage_error"), answer.text
        return False

    def _refused(self, answer: httpx.Response, status: int, kind: str) -> None:
        assert (answer.status_code, answer.json()["kind"]) == (status, kind), answer.text

    def _forbidden(self, answer: httpx.Response, kind: str) -> None:
        assert answer.status_code == 403, answer.text
        assert answer.request.method == "HEAD" or answer.json()["kind"] == kind, answer.text

    # What an act is about.

    def _is_live(self, kept: Kept) -> bool:
        return kept.trash_at is None or kept.trash_at > self.now

    def _is_gone(self, kept: Kept) -> bool:
        trash_time = self.world.settings.trash_time
        return kept.trash_at is not None and kept.trash_at + trash_time <= self.now

    def _later(self, act: Act) -> datetime:
        return self.now + timedelta(minutes=act.minutes)

    def _collection(self, act: Act) -> Kept | None:
        return self.kept[sorted(self.kept)[act.choice % len(self.kept)]] if self.kept else None

    def _signature(self, act: Act) -> Signature | None:
        return self.signatures[act.choice % len(self.signatures)] if self.signatures else None

    def _own_signatures(self, act: Act) -> list[Signature]:
        """Some signatures of the client: often the newest."""
        mine = [each for each in self.signatures if each.who == act.who][-4:]
        return [each for place, each in enumerate(mine) if act.choice >> place & 1]


def failing(moment: Moment) -> Callable[[Moment], None]:
    """What makes a put fail at a moment."""

    def at_put(found: Moment) -> None:
        if found == moment:
            raise Failed("storage_error", "the test's storage fails")

    return at_put


def _manifest(signatures: list[Signature]) -> str:
    """A manifest of one file, which has these blocks."""
    if not signatures:
        return ""
    size = sum(len(each.data) for each in signatures)
    return f". {' '.join(each.locator for each in signatures)} 0:{size}:file\n"


def _data(signatures: list[Signature]) -> list[bytes]:
    return sorted({each.data for each in signatures})


def _trash_at(answer: dict[str, Any]) -> datetime | None:
    text = answer["trash_at"]
    return None if text is None else datetime.fromisoformat(text)
