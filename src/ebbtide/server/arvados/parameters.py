"""The parameters of Arvados's routes: their types of JSON by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Parameters = Mapping[str, str]
"""Types of JSON by the names of parameters."""

LISTING: Final[Parameters] = {
    "filters": "array",
    "order": "array",
    "select": "array",
    "limit": "integer",
    "offset": "integer",
    "count": "string",
    "distinct": "boolean",
}
TRASH: Final[Parameters] = {"include_trash": "boolean"}
VERSIONS: Final[Parameters] = {"include_old_versions": "boolean"}
UNIQUE: Final[Parameters] = {"ensure_unique_name": "boolean"}
SELECT: Final[Parameters] = {"select": "array"}
REPLACE: Final[Parameters] = {"replace_files": "object", "replace_segments": "object"}
CONTENTS: Final[Parameters] = {
    **LISTING,
    **TRASH,
    **VERSIONS,
    "uuid": "string",
    "recursive": "boolean",
    "exclude_home_project": "boolean",
    "include": "array",
}
SHARED: Final[Parameters] = {**LISTING, **TRASH, "include": "array"}
