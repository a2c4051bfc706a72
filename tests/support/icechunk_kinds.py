"""Real Icechunk repositories of all kinds: of either version or upgraded, with names of any
characters, in a directory or on S3, and with all that Icechunk does to a history.
"""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import pytest
from icechunk import IcechunkError

from tests.support.icechunk import Place, RandomHistory, open_repository, upgrade

Kind = Literal["1", "2", "upgraded"]
KINDS: Final[tuple[Kind, ...]] = ("1", "2", "upgraded")

NAMES: Final = (
    *("forschung-müller", "forschung-m%C3%BCller", "mu\u0308ller", "50%", "a%20b", "a b"),
    *(" a b ", "a#b", "~a", "*", "what?", "🧊", "🧊" * 15, "%2F", "%252F", "%", "[x]", "{x}"),
    *("a|b", 'a"b', "a\\b", "<a>", "^`", "n" * 200, "..", ".", ".hidden", "ref.json"),
    *("branch.main", "tag.a", "MAIN", "-x", "a+b&c=d;e,f'g$h@i!(j)", "ß", "日本語"),
)
"""Names of branches and tags. What looks encoded is meant so, letter by letter."""

ENCODED: Final = frozenset('"#%*<>?[\\]^`{|}~')
"""The characters besides those that are not ASCII that a directory encodes."""


def is_encoded(name: str) -> bool:
    """Whether a directory spells a ref of version 1 otherwise than it is called."""
    return not name.isascii() or not ENCODED.isdisjoint(name)


class HistoryOfAnyKind(RandomHistory):
    """Operations on a repository of one kind. An upgraded one begins as version 1.

    `refs` are its branches and tags, by kind and name: a directory spells those of version 1
    otherwise, and Icechunk lists them so, if it lists them at all.
    """

    def __init__(self, place: Place, choices: random.Random, kind: Kind) -> None:
        super().__init__(place, choices, 2 if kind == "2" else 1)
        self.kind = kind
        self.version = 2 if kind == "2" else 1
        self.made: set[tuple[str, str]] = {("branch", "main")}
        self.snapshots: list[str] = []
        self.steps |= {self._retag: 2, self._revive: 2, self._collect: 1}
        if kind == "upgraded":
            self.steps[self._upgrade] = 4

    def finish(self) -> None:
        """Upgrade it, if it is to be and is not yet."""
        if self.kind == "upgraded" and self.version == 1:
            self._upgrade()

    def refs(self) -> list[tuple[str, str]]:
        return [("branch", name) for name in self.branches()] + [
            ("tag", name) for name in self.tags()
        ]

    def branches(self) -> list[str]:
        return self._there("branch")

    def tags(self) -> list[str]:
        return self._there("tag")

    def new_name(self, kind: str) -> str:
        used = {name for _, name in self.made}
        free = [name for name in NAMES if name not in used and self._may_be(name)]
        name = self.choices.choice([super().new_name(kind), *free])
        self.made.add((kind, name))
        return name

    def _may_be(self, name: str) -> bool:
        """Icechunk can neither upgrade nor collect a directory with an encoded branch of version 1,
        and passes over an encoded tag: the test has such names for version 1 alone."""
        at_hand = self.kind != "upgraded" or self.version == 2 or not isinstance(self.path, Path)
        return at_hand or not is_encoded(name)

    @property
    def collectable(self) -> bool:
        """Whether Icechunk can collect it as it is, and keeps all that refs reach."""
        is_plain = self.version == 2 or not isinstance(self.path, Path)
        return is_plain or not any(is_encoded(name) for _, name in self.refs())

    def _there(self, kind: str) -> list[str]:
        look_up = self.repository.lookup_branch if kind == "branch" else self.repository.lookup_tag
        found = []
        for made, name in sorted(self.made):
            if made == kind:
                with suppress(IcechunkError):
                    look_up(name)
                    found.append(name)
        return found

    def step(self) -> None:
        super().step()
        if "main" in self.branches():
            self.snapshots.append(self.repository.lookup_branch(self._any_branch()))

    def _retag(self) -> None:
        """Delete a tag and make it again: its name cannot be used again, another can."""
        if not (tags := self.tags()):
            return
        name = self.choices.choice(tags)
        snapshot_id = self.repository.lookup_tag(name)
        self.repository.delete_tag(name)
        with pytest.raises(IcechunkError):
            self.repository.create_tag(name, snapshot_id)
        self.repository.create_tag(self.new_name("tag"), snapshot_id)

    def _revive(self) -> None:
        """Put a ref on any snapshot that ever was, if it is still to be had."""
        snapshot_id = self.choices.choice(self.snapshots)
        with suppress(IcechunkError):
            list(self.repository.ancestry(snapshot_id=snapshot_id))
            match self.choices.randrange(3):
                case 0:
                    self.repository.reset_branch(self._any_branch(), snapshot_id)
                case 1:
                    self.repository.create_branch(self.new_name("branch"), snapshot_id)
                case _:
                    self.repository.create_tag(self.new_name("tag"), snapshot_id)

    def _expire(self) -> None:
        if self.collectable:
            super()._expire()

    def _collect(self) -> None:
        """Icechunk's own collection, of what is older than some snapshot."""
        if self.collectable:
            newest = datetime.now(UTC) + timedelta(days=1)
            dates = [self._any_snapshot().written_at, newest]
            self.repository.garbage_collect(self.choices.choice(dates))
            self.repository = open_repository(self.path)

    def _upgrade(self) -> None:
        upgrade(self.path, keeps_old_files=self.choices.random() < 0.5)
        self.repository = open_repository(self.path)
        self.version = 2
        del self.steps[self._upgrade]
        self.steps |= {self._amend: 2, self._detach: 1}
