"""The glossary: each word once, each used, and no other word in its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import pytest

from scripts import prose

pytestmark = pytest.mark.xdist_group("house")

CONCEPTS: Final = "docs/concepts.md"
OTHER_SYSTEMS: Final = ("docs/comparison.md", "docs/design/", "docs/iceberg.md", "docs/delta.md")
"""These also speak of other systems, by the words of those."""


class Term(NamedTuple):
    """A row of the glossary. `avoided` has the words that are not used for it."""

    word: str
    meaning: str
    avoided: tuple[str, ...]


def glossary() -> list[Term]:
    text = (prose.ROOT / CONCEPTS).read_text()
    rows = re.findall(r"^\| (.+?) \| (.+?) \|(.*?)\|$", text.partition("## Glossary")[2], re.M)
    return [
        Term(word, meaning, tuple(filter(None, map(str.strip, avoided.split(",")))))
        for word, meaning, avoided in rows[1:]
    ]


@pytest.fixture(scope="module")
def texts() -> Mapping[str, list[prose.Text]]:
    files = [each for each in prose.project_files() if not each.startswith("tests/")]
    return prose.read(files)


def test_each_word_has_one_row() -> None:
    words = [term.word for term in glossary()]
    assert len(words) > 40
    assert words == sorted(set(words), key=str.lower)


def test_each_word_is_used(texts: Mapping[str, list[prose.Text]]) -> None:
    """By a document or docstring besides."""
    said = " ".join(text.content for found in texts.values() for text in found)
    unused = [
        term.word for term in glossary() if not re.search(rf"(?i)\b{re.escape(term.word)}", said)
    ]
    assert unused == []


def test_words_that_the_page_explains_are_in_the_glossary() -> None:
    """Those in the tables of its other sections whose first column is `word`."""
    page = (prose.ROOT / CONCEPTS).read_text().partition("## Glossary")[0]
    tables = re.findall(r"^\| word \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.M)
    explained = {
        word.strip()
        for table in tables
        for line in table.splitlines()
        for word in line.split("|")[1].split(",")
    }
    others = {"forget", "report"}  # what a sweep does and writes: the page says no more of them
    assert explained - {term.word for term in glossary()} - others == set()


def test_no_other_word_is_used(texts: Mapping[str, list[prose.Text]]) -> None:
    words = [word for term in glossary() for word in term.avoided]
    avoided = re.compile(r"(?i)\b(" + "|".join(map(re.escape, words)) + r")\b")
    found = [
        f"{text.file}:{text.line}: {word[0]}"
        for file, of_file in texts.items()
        if not file.startswith(OTHER_SYSTEMS)
        for text in of_file
        if (word := avoided.search(re.sub(r"`[^`]*`", "", text.content)))
    ]
    assert len(words) > 10
    assert found == []
