"""The sections of a repository's pages. A new section needs one line here, and a module with its
pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ebbtide.formats.schemes import has_policy, is_elsewhere
from ebbtide.server.pages.rendering import link
from ebbtide.store.access.keys import Role


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a repository's pages, at `path` below the repository's own page. `of` are the
    repositories that have it: those of the store, those with a policy, or all."""

    name: str
    path: str
    role: Role = Role.READER
    of: Literal["store", "policy", "all"] = "store"


SECTIONS: Final = (
    Section("Overview", ""),
    Section("Files", "files"),
    Section("Commits", "commits"),
    Section("Branches and tags", "refs"),
    Section("Compare", "compare"),
    Section("Collections", "collections"),
    Section("Policy", "policy", of="policy"),
    Section("Holds", "holds"),
    Section("Protection", "protection"),
    Section("Runs", "runs", of="all"),
    Section("Explain", "explain", of="all"),
    Section("Trash", "trash"),
    Section("Purges", "purges", Role.ADMIN),
)


_WITHIN: Final = {"object": "files"}
"""Pages that belong to a section of another name."""


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A section as the navigation shows it."""

    name: str
    url: str
    is_current: bool


def sections_of(repository: str, role: Role, path: str) -> tuple[ShownSection, ...]:
    """Returns the sections that a role may see. `path` is the path of the current page, as the
    browser wrote it."""
    base = link("repositories", repository)
    below = path.removeprefix(base).strip("/").partition("/")[0]
    below = _WITHIN.get(below, below)
    return tuple(
        ShownSection(
            section.name,
            f"{base}/{section.path}".rstrip("/"),
            section.path == below,
        )
        for section in SECTIONS
        if role.allows(section.role) and _has(repository, section)
    )


def _has(repository: str, section: Section) -> bool:
    if section.of == "policy":
        return has_policy(repository)
    return section.of == "all" or not is_elsewhere(repository)
