"""Sample data for a new repository, at the paths that lakeFS's sample data has.

Tutorials and tests of lakeFS's clients read these paths. The contents are Ebbtide's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject

MESSAGE: Final = "Add sample data"

_README: Final = """# Sample data

This repository has a small table of lakes, `lakes.parquet`. Make a branch, change the table there,
and merge the branch:

    ebbtide branch create REPO my-change
    ebbtide fs put REPO my-change FILE lakes.parquet
    ebbtide commit REPO my-change -m "other lakes"
    ebbtide merge REPO my-change main
"""
_SOURCE: Final = """# The table of lakes

`lakes.parquet` has some large or deep lakes. `area_km2` is the area in square kilometres, and
`depth_m` the greatest depth in metres. The figures are rounded.
"""
_PICTURE: Final = """<svg xmlns="http://www.w3.org/2000/svg" width="64" height="32">
<ellipse cx="32" cy="16" rx="30" ry="12" fill="#4a90d9"/>
</svg>
"""
_LAKES: Final = (
    ("Baikal", "Russia", 31_700, 1_642),
    ("Tanganyika", "Tanzania", 32_900, 1_470),
    ("Superior", "Canada", 82_100, 406),
    ("Victoria", "Uganda", 59_900, 81),
    ("Garda", "Italy", 370, 346),
    ("Geneva", "Switzerland", 580, 310),
    ("Titicaca", "Peru", 8_370, 281),
    ("Vänern", "Sweden", 5_650, 106),
)
_COLUMNS: Final = ("name", "country", "area_km2", "depth_m")


def add_samples(repository: Repository, *, committer: str) -> None:
    """Commits the sample data to the default branch. Raises as `Commits.commit` does."""
    branch = repository.info.default_branch
    repository.objects.put_many(branch, _objects())
    repository.commits.commit(branch, MESSAGE, committer=committer)


def _objects() -> Iterator[NewObject]:
    yield NewObject("README.md", _README.encode(), "text/markdown")
    yield NewObject("data/lakes.source.md", _SOURCE.encode(), "text/markdown")
    yield NewObject("images/lake.svg", _PICTURE.encode(), "image/svg+xml")
    columns = zip(*_LAKES, strict=True)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(zip(_COLUMNS, map(list, columns), strict=True))), sink)
    yield NewObject("lakes.parquet", sink.getvalue().to_pybytes(), "application/octet-stream")
