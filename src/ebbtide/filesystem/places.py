"""The parts of a path `REPO/REF/PATH`.

A slash in a ref is written `%2F`, as in the paths of the S3 gateway.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

_SAFE = "~^@"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a store. Parts that a path does not have are empty."""

    repository: str = ""
    ref: str = ""
    path: str = ""

    @classmethod
    def of(cls, text: str) -> Place:
        """Returns the place of a path without protocol."""
        repository, _, rest = text.partition("/")
        ref, _, path = rest.partition("/")
        return cls(repository, unquote(ref), path)

    def __str__(self) -> str:
        ref = quote(self.ref, safe=_SAFE)
        return "/".join(part for part in (self.repository, ref, self.path) if part)

    def at(self, path: str) -> Place:
        """Returns the place of another path of the same ref."""
        return Place(self.repository, self.ref, path)

    def require_object(self) -> None:
        """Raises ValueError unless the place can have an object."""
        if not self.path:
            raise ValueError(
                f"{str(self) or 'the root'!r} is no place of an object: write REPO/BRANCH/PATH"
            )
