"""Addresses of a storage namespace, as the server writes them in its answers and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ebbtide.errors import InvalidInput

LOCAL: Final = "local://"
_DATA: Final = "/data/"
_S3: Final = "s3://"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A storage namespace: its URL on the server, and its URL for this program (`root`). Both end
    in `/`.

    If the server keeps its objects in a directory, `root` has the whole path. Some of the server's
    answers have this path too.
    """

    url: str
    root: str

    @property
    def storage_url(self) -> str:
        """The URL by which this program opens it. Raises InvalidInput `invalid_address` if it is on
        a storage of another kind."""
        if self.root.startswith(LOCAL):
            return "file://" + self.root.removeprefix(LOCAL).rstrip("/")
        if self.root.startswith(_S3):
            return self.root.rstrip("/")
        raise InvalidInput(
            "invalid_address",
            f"the storage namespace {self.url} is on a storage that cannot be collected yet: "
            f"it has to begin with {_S3} or {LOCAL}",
        )

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The beginnings of the URLs of addresses in the namespace."""
        return (self.root, self.url)

    def relative(self, url: str) -> str | None:
        """Returns an address in the namespace, or None for one outside of it.

        A server writes the namespace in several ways: URLs of linked objects in a directory have
        its path twice. Therefore a URL with another beginning is in the namespace if it has
        `/data/`. Its address is the part from the last `data/` on.
        """
        for prefix in self.prefixes:
            if url.startswith(prefix):
                return url.removeprefix(prefix)
        before, data, behind = url.rpartition(_DATA)
        return f"{data}{behind}".lstrip("/") if before else None
