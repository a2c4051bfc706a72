"""Formats of repositories outside the store, such as Icechunk's and lakeFS's.

A name such as `icechunk:PATH` begins with a scheme. The scheme is the name of an entry point in the
group `ebbtide.formats`, which leads to a subclass of `Scheme`. Another distribution can bring one.
Not for: repositories of the store, whose names have no scheme.

Source: Python Packaging User Guide, "Entry points specification".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from ebbtide.errors import InvalidInput

if TYPE_CHECKING:
    from ebbtide.formats.base import RepositoryFormat
    from ebbtide.formats.capabilities import WithExpiry, WithPolicy
    from ebbtide.retention.expiry import Expiry
    from ebbtide.settings import Settings

GROUP: Final = "ebbtide.formats"
ASKED: Final = "asked"
"""The quarantine of a sweep that asks before it begins."""


class Scheme(ABC):
    """Opens the repositories of one format by their names. Made without arguments.

    - `asks_for_quarantine`: sweeps use a quarantine unless the user says otherwise. For formats in
      which a file can be needed again before a sweep notices it.
    - `rules_of_its_own`: what applies to a repository without a policy, in words. Without them,
      everything is kept.
    """

    asks_for_quarantine: bool = False
    rules_of_its_own: str | None = None

    @abstractmethod
    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[RepositoryFormat, timedelta]:
        """Returns the repository, and the shortest grace that is safe for it. `run_dir` is the
        place of its runs' files, and `quiet` the option `--quiet-repository`.

        Raises InvalidInput `invalid_setting` or `invalid_argument`, NotFound, Refused, and Failed,
        also `extra_missing`.
        """


class PolicyScheme(Scheme):
    """The scheme of a format with retention policies."""

    @abstractmethod
    def open_policy(self, name: str, settings: Settings) -> WithPolicy:
        """Returns the repository. Raises as `open`."""


class ExpiringScheme(Scheme):
    """The scheme of a format whose history `ebbtide expire` cuts."""

    @abstractmethod
    def open_expiring(self, name: str, settings: Settings) -> WithExpiry:
        """Returns the repository. Raises as `open`."""

    @abstractmethod
    def open_expired(
        self, name: str, settings: Settings, *, run_dir: str, expiry: Expiry | None
    ) -> RepositoryFormat:
        """Returns the repository as it would be after an expiry, to plan with. Raises as `open`."""

    @abstractmethod
    def sessions(self, settings: Settings) -> timedelta:
        """Returns how long clients may use what no ref names."""


def scheme_of(name: str) -> Scheme | None:
    """Returns the scheme of a name; None for a repository of the store."""
    scheme, colon, _ = name.partition(":")
    return _load(scheme) if colon and scheme in _known() else None


def is_elsewhere(name: str) -> bool:
    """Whether a name is that of a repository outside the store."""
    return scheme_of(name) is not None


def has_policy(name: str) -> bool:
    """Whether repositories of this kind have a retention policy (`WithPolicy`)."""
    scheme = scheme_of(name)
    return scheme is None or isinstance(scheme, PolicyScheme)


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
            "--quiet-repository is only for Icechunk repositories: leave it out. Ebbtide knows the "
            "users of its own repositories, and asks lakeFS's server",
        )


@cache
def _known() -> Mapping[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=GROUP)}


@cache
def _load(scheme: str) -> Scheme:
    made: Scheme = _known()[scheme].load()()
    return made
