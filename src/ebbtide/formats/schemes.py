"""Formats of repositories outside the store, such as those of Icechunk, Iceberg and lakeFS.

A name such as `icechunk:PATH` begins with a scheme. The scheme is the name of an entry point in the
group `ebbtide.formats`, which leads to a subclass of `Scheme`. Another distribution can bring one.
Not for: repositories of the store, whose names have no scheme.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Final

from ebbtide.errors import InvalidInput
from ebbtide.plugins import plugins_of

if TYPE_CHECKING:
    from ebbtide.formats.base import RepositoryFormat
    from ebbtide.settings import Settings

GROUP: Final = "ebbtide.formats"
ASKED: Final = "asked"
"""The quarantine of a sweep that asks before it begins."""


class Scheme(ABC):
    """Opens the repositories of one format by their names. Made without arguments.

    - `asks_for_quarantine`: sweeps use a quarantine unless the user says otherwise. For formats in
      which a file can be needed again before a sweep notices it.
    - `has_policy`: its repositories have a retention policy (`WithPolicy`).
    - `has_expiry`: `ebbtide expire` cuts their history (`WithExpiry`).
    - `holds_released`: commits that an expiry released keep their data for one more grace.
    - `grace_setting`: the setting that has the grace.
    - `rules_of_its_own`: what applies to a repository without a policy, in words. Without them,
      everything is kept.
    """

    asks_for_quarantine: bool = False
    has_policy: bool = False
    has_expiry: bool = False
    holds_released: bool = False
    grace_setting: str = "EBBTIDE_GRACE"
    rules_of_its_own: str | None = None

    @abstractmethod
    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[RepositoryFormat, timedelta]:
        """Returns the repository, and the shortest grace that is safe for it: how long clients may
        use what no ref names. `run_dir` is the place of its runs' files, and `quiet` the option
        `--quiet-repository`.

        Raises InvalidInput `invalid_setting` or `invalid_argument`, NotFound, Refused, and Failed,
        also `extra_missing`.
        """


def scheme_of(name: str) -> Scheme | None:
    """Returns the scheme of a name; None for a repository of the store."""
    scheme, colon, _ = name.partition(":")
    return _load(scheme) if colon and scheme in plugins_of(GROUP) else None


def is_elsewhere(name: str) -> bool:
    """Whether a name is that of a repository outside the store."""
    return scheme_of(name) is not None


def has_policy(name: str) -> bool:
    """Whether repositories of this kind have a retention policy (`WithPolicy`)."""
    scheme = scheme_of(name)
    return scheme is None or scheme.has_policy


def has_rules(name: str) -> bool:
    """Whether a repository of this kind has rules of its own."""
    scheme = scheme_of(name)
    return scheme is not None and scheme.rules_of_its_own is not None


def always_quarantined(name: str) -> str | None:
    """Returns ASKED if sweeps of a repository use a quarantine by default."""
    scheme = scheme_of(name)
    return ASKED if scheme is not None and scheme.asks_for_quarantine else None


def require_not_quiet(*, quiet: bool) -> None:
    """Raises InvalidInput if `--quiet-repository` is given for a repository whose users Ebbtide
    knows."""
    if quiet:
        raise InvalidInput(
            "invalid_argument",
            "--quiet-repository is only for Icechunk repositories: leave it out",
        )


@cache
def _load(scheme: str) -> Scheme:
    made: Scheme = plugins_of(GROUP)[scheme].load()()
    return made
