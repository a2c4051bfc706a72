"""Queries: tags."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ebbtide.store.metadata.refs import RefTable
from ebbtide.store.metadata.schema import tags


@dataclass(frozen=True, slots=True)
class TagRow:
    """One tag as it is stored."""

    tag_id: str
    name: str
    commit_id: str
    created_at: datetime
    expires_at: datetime | None

    @property
    def ref_id(self) -> str:
        """The tag's id."""
        return self.tag_id


TAGS: Final = RefTable("tag", tags, tags.c.tag_id, TagRow)

find_tag = TAGS.find
is_tag_on = TAGS.is_on
