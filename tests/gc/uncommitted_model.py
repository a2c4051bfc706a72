"""What a test knows of everything that lies in a storage: its bytes, and who needs it when.

Written from docs/uncommitted.md and docs/safety.md, and shares no code with the collector. Objects
are known by their addresses, so that two of the same bytes are two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.gc.model import Model


@dataclass(slots=True)
class Promise:
    """An address that was given out, with the token that links what was `sent` there last."""

    branch: str
    path: str
    address: str
    token: str
    expires_at: datetime
    sent: list[bytes] = field(default_factory=list)
    used: bool = False

    def outstanding(self, now: datetime) -> bool:
        """Whether it can be linked."""
        return not self.used and now < self.expires_at


@dataclass(slots=True)
class UncommittedModel(Model[str]):
    """The repository with all its files.

    `files` has every one that was ever written whole. `writing` maps the threads that are at it to
    the addresses that they registered, and until when. `pointers` are the trees and ranges of
    commits. `late` are files that were written when nothing was registered for them: in a slice
    that was closed off by then they wait for a clean run. `foreign` and `external` files are
    nobody's to delete. `shared` are the addresses of copies within a branch, with their dates, and
    `reading` is when somebody began to read in pages, and has until.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)
    writing: dict[int, dict[str, datetime]] = field(default_factory=dict)
    pointers: dict[str, frozenset[str]] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    foreign: dict[str, bytes] = field(default_factory=dict)
    external: dict[str, bytes] = field(default_factory=dict)
    shared: list[tuple[str, datetime]] = field(default_factory=list)
    reading: tuple[datetime, datetime] | None = None

    def registered(self, now: datetime) -> set[str]:
        """The addresses of writes in progress."""
        return {
            address
            for addresses in self.writing.values()
            for address, until in addresses.items()
            if now < until
        }

    def uncommitted(self, now: datetime) -> set[str]:
        """What is needed though no commit may have it."""
        staged = {address for head in self.heads(now) for address in head.values()}
        promised = {each.address for each in self.promises if each.outstanding(now)}
        return (staged | promised | self.registered(now)) - self.external.keys()

    def tracked(self, now: datetime) -> set[str]:
        """What was copied while somebody reads in pages: it stays, though it may be dropped. A copy
        that is a microsecond older than the reading may have been made beside its beginning."""
        if self.reading is None or now >= self.reading[1]:
            return set()
        since = self.reading[0] - timedelta(microseconds=1)
        return {address for address, at in self.shared if at >= since}

    def reachable(self, now: datetime) -> set[str]:
        """What commits need: objects, trees and ranges."""
        pointers = (self.pointers[commit_id] for commit_id in self.recorded(now))
        return (self.committed(now) - self.external.keys()).union(*pointers)

    def needed(self, now: datetime) -> set[str]:
        """What must not be deleted at this instant."""
        return self.reachable(now) | self.uncommitted(now)


def is_among(address: str, needed: set[str]) -> bool:
    """Whether a file is needed: a temporary one with what it is being written for."""
    return address.partition("#")[0] in needed
