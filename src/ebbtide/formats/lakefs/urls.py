"""Addresses of a storage namespace, as the server writes them in its answers and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ebbtide.errors import InvalidInput

LOCAL: Final = "local://"
_DATA: Final = "/data/"
_SUPPORTED: Final = ("s3://", "gs://")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A storage namespace: its URL, and where it is for this program. Both end in `/`.

    Of a server that keeps its objects in a directory, `root` has the whole path, which its answers
    have too.
    """

    url: str
    root: str

    @property
    def storage_url(self) -> str:
        """The URL by which this program opens it. Raises InvalidInput `invalid_address` if it is on
        a storage of another kind."""
        if self.root.startswith(LOCAL):
            return "file://" + self.root.removeprefix(LOCAL).rstrip("/")
        if self.root.startswith(_SUPPORTED):
            return self.root.rstrip("/")
        raise InvalidInput(
            "invalid_address",
            f"the storage namespace {self.url} is on a storage that cannot be collected yet: "
            f"it has to begin with one of {', '.join((*_SUPPORTED, LOCAL))}",
        )

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the URL of an address in the namespace may begin with."""
        return (self.root, self.url)

    def relative(self, url: str) -> str | None:
        """Returns an address in the namespace, or None for one outside of it.

        A server does not always name the namespace alike: linked objects in a directory have its
        path twice. So a URL of any other form counts by what it has from `data/` on.
        """
        for prefix in self.prefixes:
            if url.startswith(prefix):
                return url.removeprefix(prefix)
        before, data, behind = url.rpartition(_DATA)
        return f"{data}{behind}".lstrip("/") if before else None
