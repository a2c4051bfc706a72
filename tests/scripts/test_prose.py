"""The prose: what `scripts/prose` measures, and that every file keeps its limits."""

from __future__ import annotations

import pytest

from scripts import prose

DOCUMENT = """# A heading is no sentence of many words

One sentence with `a piece of code`. Another, with [a link](https://example.org/a/b)
over two lines! ![A picture](picture.svg)

| a table | is | left out |
|---|---|---|
| with all | its | cells |

- an item of a list

```sh
code is left out
```
"""

PROGRAM = '''"""Says what it is for.

Not for: anything else.
"""
# A comment
# of two lines.
x = 1  # noqa: E501

y = 2
"""What y is."""


def f():
    """One, two, three."""
    return option(help="A help text.", metavar="NO TEXT")
'''


def sentences(file: str, content: str) -> list[tuple[str, int, str]]:
    return [
        (text.kind, text.line, sentence)
        for text in prose.texts_of(file, content)
        for sentence in text.sentences()
    ]


def test_the_sentences_of_a_document() -> None:
    assert sentences("a.md", DOCUMENT) == [
        ("paragraph", 3, "One sentence with `a·piece·of·code`."),
        ("paragraph", 3, "Another, with a link over two lines!"),
        ("paragraph", 10, "an item of a list"),
    ]


def test_the_sentences_of_a_program() -> None:
    assert sorted(sentences("a.py", PROGRAM), key=lambda each: each[1]) == [
        ("docstring", 1, "Says what it is for."),
        ("docstring", 1, "Not for: anything else."),
        ("comment", 5, "A comment of two lines."),
        ("docstring", 10, "What y is."),
        ("docstring", 14, "One, two, three."),
        ("help text", 15, "A help text."),
    ]


@pytest.mark.parametrize("words", [35, 36])
def test_what_is_too_long(words: int) -> None:
    content = f"Short. {'word ' * (words - 1)}`code`."
    measured = prose.measure("a.md", prose.texts_of("a.md", content))
    assert measured is not None
    assert measured.average == (1 + words) / 2
    assert measured.longest[0] == words
    assert [length for length, _, _ in measured.too_long] == ([36] if words > 35 else [])
    assert prose.measure("a.py", prose.texts_of("a.py", "x = 1\n")) is None


def test_every_file_is_easy_to_read() -> None:
    """`scripts/prose FILE` shows the sentences that are too long."""
    files = prose.project_files()
    assert len(files) > 100
    found = [prose.measure(file, texts) for file, texts in prose.read(files).items()]
    bad = [each.file for each in found if each is not None and not each.is_fine]
    assert not bad
