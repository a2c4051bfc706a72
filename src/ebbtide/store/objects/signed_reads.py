"""URLs that read objects directly from the storage, without asking this program.

A URL ends before the protection of its bytes. A committed object is protected by a lease on its
commit, as for locators, and a staged object by a lease on its address. An object outside the
storage root is never collected; its URL also reads what its owner writes there later. Not for:
locators, which can also be used in new content.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.storage import sign_external
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.objects import views
from ebbtide.store.objects.locators import SIGNING_MARGIN, Locators
from ebbtide.store.objects.objects import require_source
from ebbtide.store.page import Page, page_of
from ebbtide.store.purge_records import require_not_purged
from ebbtide.store.refs.ref_rows import BRANCH_ATTEMPTS_MAX, require_branch
from ebbtide.store.repositories.repository_rows import repository_by_id
from ebbtide.store.staging.released import are_leased, hold_staged, lease_addresses
from ebbtide.text import shown

Method = Literal["GET", "HEAD"]
_EVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SignedRead:
    """An object, and the URL that reads it until `expires_at`."""

    entry: Entry
    url: str
    expires_at: datetime

    @property
    def path(self) -> str:
        """The path of the object."""
        return self.entry.path


class SignedReads:
    """The signed URLs of one repository."""

    def __init__(self, context: RepositoryContext, locators: Locators) -> None:
        self._context = context
        self._locators = locators

    def sign(self, ref: str, path: str, *, method: Method = "GET") -> SignedRead:
        """Returns a URL for the object that `ref` shows at `path`.

        It lasts for EBBTIDE_LEASE_TTL, or until the branch or tag in `ref`, or the repository,
        expires if that is earlier.

        Raises as `Objects.open` and `require_source` do, and InvalidInput `presign_unsupported` if
        the storage cannot sign URLs, or none that last that long.
        """
        for _ in range(BRANCH_ATTEMPTS_MAX):
            found = views.find(self._context, ref, path)
            if found is None:
                raise NotFound(
                    "object_not_found", f"there is no object {shown(path)} on {shown(ref)}"
                )
            # Nobody checks this again when the URL is used.
            require_source(found.entry)
            signed = self._sign_all(ref, [found], method)
            if signed is not None:
                return signed[0]
        raise _moves_too_often(ref)

    def list(
        self, ref: str, *, prefix: str = "", delimiter: str = "", after: str = "", amount: int
    ) -> Page[SignedRead]:
        """Returns a page of objects as `Objects.list` does, each with a URL. Raises as it does, and
        as `sign` does."""
        for _ in range(BRANCH_ATTEMPTS_MAX):
            page = page_of(
                lambda place: views.walk_found(self._context, ref, prefix=prefix, after=place),
                prefix=prefix,
                delimiter=delimiter,
                after=after,
                amount=amount,
            )
            signed = self._sign_all(ref, page.entries, "GET")
            if signed is not None:
                return Page(tuple(signed), page.common_prefixes, page.next_after)
        raise _moves_too_often(ref)

    def _sign_all(
        self, ref: str, found: Sequence[views.FoundEntry], method: Method
    ) -> builtins.list[SignedRead] | None:
        """Protects all objects, then signs. Returns None if a staged object was dropped or
        committed since it was found: then the caller looks again."""
        context = self._context
        if not found:
            return []
        for each in found:
            if each.commit is not None:
                each.commit.require_intact()
        with context.metadata.snapshot() as tx:
            end_of_ref = self._locators.end_of(tx, ref)
        inside = [each for each in found if not is_external(each.entry.address)]
        ends = {
            commit.commit_id: self._locators.lease(commit, ends_at_most=end_of_ref)
            for commit in _commits(inside)
        }
        staged = {each.path: each.entry.address for each in inside if each.commit is None}
        ends_staged = self._lease_staged(ref, staged) if staged else _EVER
        if ends_staged is None:
            return None
        with context.metadata.snapshot() as tx:
            require_not_purged(tx, context.repository_id, [each.entry.address for each in inside])
            info = repository_by_id(tx, context.repository_id)
            now = tx.now()
        most = min(
            now + context.settings.lease_ttl,
            ends_staged,
            end_of_ref or _EVER,
            (info and info.expires_at) or _EVER,
            *ends.values(),
        )
        lasts = most - now - self._margin
        return [
            SignedRead(each.entry, self._url(each.entry, lasts, method), now + lasts)
            for each in found
        ]

    def _lease_staged(self, branch: str, addresses: Mapping[str, str]) -> datetime | None:
        """Leases staged addresses, path → address. Returns the end of the leases, or None if one
        is not staged at its path any more."""
        context = self._context
        repository_id, lasts = context.repository_id, context.settings.lease_ttl
        with context.metadata.snapshot() as tx:
            ends_at = tx.now() + lasts
            if are_leased(tx, repository_id, addresses.values(), until=ends_at):
                return ends_at
        with context.changing() as tx:
            row = require_branch(tx, repository_id, branch, lock="share")
            if hold_staged(tx, repository_id, row.tokens, addresses) != set(addresses):
                return None
            now = tx.now()
            # Longer than needed, so that most requests find a lease that is long enough.
            until = now + lasts + lasts / 2
            lease_addresses(tx, repository_id, addresses.values(), until=until)
            return now + lasts

    @property
    def _margin(self) -> timedelta:
        """The time by which a URL ends before the lease. The lease ends by the database's clock,
        and the URL by the storage's, which a run allows to be EBBTIDE_CLOCK_SKEW_MAX behind."""
        settings = self._context.settings
        return SIGNING_MARGIN + min(settings.clock_skew_max, settings.lease_ttl / 4)

    def _url(self, entry: Entry, lasts: timedelta, method: Method) -> str:
        url = None
        if lasts > timedelta():
            sign = sign_external if is_external(entry.address) else self._context.storage.sign_get
            url = sign(entry.address, lasts=lasts, method=method)
        if url is None:
            raise unsupported()
        return url


def unsupported() -> InvalidInput:
    """Returns the error for a request of a signed URL that cannot be had."""
    return InvalidInput(
        "presign_unsupported",
        "the storage cannot sign URLs that last for EBBTIDE_LEASE_TTL: ask without presign",
    )


def _moves_too_often(ref: str) -> Conflict:
    return Conflict("branch_moved", f"the objects on {shown(ref)} change too often: try again")


def _commits(found: Iterable[views.FoundEntry]) -> Iterable[CommitRecord]:
    return {
        each.commit.commit_id: each.commit for each in found if each.commit is not None
    }.values()
