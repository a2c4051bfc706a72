"""The branches and tags that a field for a ref offers.

The field takes any other text, too: a commit id, or `main~3`. Therefore a page need not offer all
refs of a large repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ebbtide.store.repository import Repository

OFFERED_MAX: Final = 200
"""How many branches, and how many tags, a field offers."""


@dataclass(frozen=True, slots=True)
class RefChoice:
    """A branch or tag that a field offers."""

    name: str
    kind: str


def choices_of(repository: Repository) -> list[RefChoice]:
    """Returns the default branch, then the first branches and tags by name."""
    default = repository.info.default_branch
    branches = [each.name for each in repository.branches.page(amount=OFFERED_MAX)]
    others = [name for name in branches if name != default]
    tags = [each.name for each in repository.tags.page(amount=OFFERED_MAX)]
    return [
        *(RefChoice(name, "branch") for name in [default, *others]),
        *(RefChoice(name, "tag") for name in tags),
    ]
