"""The reference of the Python interface: as the docstrings are, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import fsspec

from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.program.python_reference import render
from ebbtide.store.embedded import Store

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = [
    each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "import" in each
]


def test_the_page_is_true() -> None:
    assert PAGE.read_text() == render(), (
        "python -m ebbtide.program.python_reference > docs/python.md"
    )


def test_examples(tmp_path: Path) -> None:
    with Store.init(tmp_path) as store:
        lake = store.create_repository("lake")
        lake.objects.put("main", "a", b"a")
        lake.commits.commit("main", "one")
    fsspec.register_implementation("ebbtide", EbbtideFileSystem, clobber=True)
    assert len(EXAMPLES) == 2
    for example in EXAMPLES:
        exec(compile(example, "docs/python.md", "exec"), {"directory": str(tmp_path)})
        for each in list(EbbtideFileSystem._cache.values()):
            each.close()
        EbbtideFileSystem.clear_instance_cache()
