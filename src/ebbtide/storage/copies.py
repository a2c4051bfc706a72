"""Copies an object within one remote storage, and looks at the copy before the original may go.

A storage can confirm a copy that is not complete. S3 can send an error after the status 200. Azure
can answer that the copy is still going on (`x-ms-copy-status: pending`), while the copy has its
full size already. obstore looks at neither. Source: Azure, `Copy Blob`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from urllib.error import HTTPError

from obstore.store import AzureStore

from ebbtide.errors import EbbtideError
from ebbtide.storage import clients, requests
from ebbtide.storage.base import DeleteOutcome, ObjectInfo

_LASTS: Final = timedelta(minutes=10)
_NOT_FOUND: Final = 404
_PENDING_SECONDS: Final = 600.0
"""How long a copy that goes on is waited for."""


class _CopyError(Exception):
    """Why a copy does not count. The text is for users."""


@dataclass(frozen=True, slots=True)
class Copier:
    """Copies objects of one storage. `head` and `sign` are those of the storage."""

    client: clients.Client = field(repr=False)  # that of Azure may have no text
    head: Callable[[str], ObjectInfo | None]
    sign: Callable[[str], str | None]

    def copy(self, source: str, target: str) -> DeleteOutcome:
        """Copies one object. The outcome is `moved` if a complete copy is at `target`, and
        `missing` if there is neither an original nor a copy. An incomplete copy is deleted, so that
        nobody takes it for the object."""
        try:
            self._check_status(source)
            self.client.copy(source, target)
        except FileNotFoundError:
            return self._earlier(source, target)
        except _CopyError as error:
            return DeleteOutcome(source, "failed", str(error))
        except clients.ERRORS as error:
            return DeleteOutcome(source, "failed", clients.explained(error))
        try:
            self._check(source, target)
        except _CopyError as error:
            return DeleteOutcome(source, "failed", f"{error}{self._removed(target)}")
        except EbbtideError as error:
            return DeleteOutcome(source, "failed", error.message)
        return DeleteOutcome(source, "moved")

    def _earlier(self, source: str, target: str) -> DeleteOutcome:
        """Returns the outcome for an original that is gone."""
        try:
            if self.head(target) is None:
                return DeleteOutcome(source, "missing")
            self._check_status(target)
        except _CopyError as error:
            return DeleteOutcome(source, "failed", str(error))
        except EbbtideError as error:
            return DeleteOutcome(source, "failed", error.message)
        return DeleteOutcome(source, "moved")

    def _check(self, source: str, target: str) -> None:
        """Raises _CopyError unless the copy is complete.

        An ETag is not compared: it depends on encryption and parts, not on the bytes alone.
        """
        self._check_status(target)
        copied, original = self.head(target), self.head(source)
        if copied is None:
            raise _CopyError("the storage confirmed the copy, but there is none")
        if original is not None and original.size_bytes != copied.size_bytes:
            raise _CopyError(
                f"the copy has {copied.size_bytes} bytes, and the object {original.size_bytes}"
            )

    def _check_status(self, address: str) -> None:
        """Waits until the object at an address is no unfinished copy. Azure alone has such ones."""
        if not isinstance(self.client, AzureStore):
            return
        began = time.monotonic()
        pause = 0.2
        while (status := self._copy_status(address)) == "pending":
            if time.monotonic() - began > _PENDING_SECONDS:
                raise _CopyError(f"the storage has been copying {address} for too long")
            time.sleep(pause)
            pause = min(2 * pause, 10.0)
        if status not in (None, "success"):
            raise _CopyError(f"the copy at {address} ended as {status}")

    def _copy_status(self, address: str) -> str | None:
        """Returns the status of the copy that made an object. None if no copy made it, or if there
        is no object."""
        try:
            url = self.sign(address)
        except EbbtideError as error:
            raise _CopyError(
                "whether a copy is complete can be asked only with an account key or an identity, "
                f"not with a SAS token ({error.message})"
            ) from error
        assert url is not None
        try:
            return requests.headers_at(url).get("x-ms-copy-status")
        except requests.FAILURES as error:
            if isinstance(error, HTTPError) and error.code == _NOT_FOUND:
                return None
            raise _CopyError(
                f"whether the copy at {address} is complete is unknown: {error}"
            ) from error

    def _removed(self, target: str) -> str:
        """Deletes an incomplete copy. Returns "", or a text that says that it is still there."""
        try:
            self.client.delete(target)
        except FileNotFoundError:
            return ""
        except clients.ERRORS as error:
            return f"; delete the incomplete copy at {target} ({clients.explained(error)})"
        return ""


def sign_head(
    sign: Callable[..., str | None],
) -> Callable[[str], str | None]:
    """Returns a function that signs a URL for the headers of an object, by `Storage.sign_get`."""
    return lambda address: sign(address, lasts=_LASTS, method="HEAD")
