"""Claims of the documents are proved: `claims.toml` names the proofs, which are run here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ebbtide.program.reference import commands
from ebbtide.store.embedded import Store
from scripts.prose import ROOT
from tests.support import claims
from tests.support.claims import COMPARISON, README

SAFETY: Final = "docs/safety.md"
CLAIMS: Final = claims.read_claims((ROOT / "tests" / "claims.toml").read_text())


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty store, which commands use that are refused. They start no Spark."""
    directory = tmp_path_factory.mktemp("claims") / "store"
    Store.init(directory).close()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EBBTIDE_STORE", str(directory))
        patched.setenv("EBBTIDE_SPARK_MASTER", "none")
        yield


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def test_every_claim_has_its_entry_and_every_entry_its_claim() -> None:
    found = [(COMPARISON, each) for each in claims.claims_of_comparison(text_of(COMPARISON))]
    found += [(README, each) for each in claims.claims_of_readme(text_of(README))]
    assert len(found) == len(set(found)) > 40
    assert (set(found) - set(CLAIMS), set(CLAIMS) - set(found)) == (set(), set())


def test_every_claim_rests_on_more_than_words() -> None:
    assert [each for each, proofs in CLAIMS.items() if set(proofs) <= {"document"}] == []


def test_every_proof_holds() -> None:
    proofs = {
        (kind, value)
        for kinds in CLAIMS.values()
        for kind, values in kinds.items()
        for value in values
    }
    assert [each for each in sorted(proofs) if not claims.holds(*each)] == []


def test_tests_that_documents_name_are_there() -> None:
    """As a file, a function, or a function's name of which only the end is given."""
    files = {Path(each).name for each in claims.names("file")}
    texts = [(ROOT / each).read_text() for each in claims.names("file") if each.endswith(".py")]
    functions = {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}
    for document in (each for each in claims.names("file") if each.endswith(".md")):
        text = text_of(document)
        for place in re.findall(r"`(tests(?:/[\w.]+)+)/?`", text):
            assert (ROOT / place).exists(), (document, place)
        for name in re.findall(r"`(?:[\w/]+\.py(?:: |::))?(test_\w+)`", text):
            assert name in functions, (document, name)

    for name in re.findall(r"\b(test_\w+\.py)\b", text_of(SAFETY)):
        assert name in files, name
    for end in re.findall(r"`…(\w+)`", text_of(SAFETY)):
        assert any(each.endswith(end) for each in functions), end


def test_columns_of_others_have_a_date() -> None:
    """And a row in the table of what was read."""
    sources, *rest = claims.tables(text_of(COMPARISON))
    systems = {name.split(" (")[0] for name, *_ in sources[1:]}
    heads = [head for head, *_ in rest if head[1] == "Ebbtide"]
    assert len(heads) == 4
    for cell in (cell for head in heads for cell in head[2:]):
        assert claims.DATED.fullmatch(cell), cell
        assert cell.split(" (")[0] in systems, cell


PAGE: Final = """
| | Ebbtide | Other (May 2026) |
|---|---|---|
| undo | `gc undo` | no |

| | what protects it |
|---|---|
| Ebbtide's store | a fence |
| Other | age |

## Where Ebbtide is weaker

- **One.** It reads
  no tables.
- **Two.**

| figure | target |
|---|---|
| time | 5 |

## When to take another

- a list
"""


def test_claims_are_found() -> None:
    assert list(claims.claims_of_comparison(PAGE)) == [
        "undo: `gc undo`",
        "Ebbtide's store: a fence",
        "**One.** It reads no tables.",
        "**Two.**",
    ]
    text = "It is here. It is\nNOT there: [why](a.md#not). See `only it`.\n\n"
    text += "| a | b |\n|---|---|\n| a | never b |\n"
    assert list(claims.claims_of_readme(text)) == ["It is NOT there: why.", "a | never b"]
    with pytest.raises(AssertionError, match="twice: it is so"):
        claims.read_claims('[[p]]\nclaim = "it is so"\n[[p]]\nclaim = """\nit is\nso"""\n')


GOOD_AND_BAD: Final = {
    "command": ("gc undo", "gc redo"),
    "no_command": ("gc redo*", "gc un*"),
    "option": ("gc plan --inventory", "gc plan --inventories"),
    "no_option": ("gc plan --path*", "gc plan --inv*"),
    "setting": ("EBBTIDE_GRACE=1d", "EBBTIDE_GRACE=1h"),
    "no_setting": ("EBBTIDE_GRACES", "EBBTIDE_GRACE"),
    "route": ("PUT /api/v1/repositories/{}/settings/branch_protection", "PUT /api/v1/nothing"),
    "no_route": ("*/actions*", "*/repositories/{}/purges"),
    "format": ("icechunk", "hudi"),
    "no_format": ("*hudi*", "*chunk*"),
    "file": ("deploy/Dockerfile", "deploy/Chart.yaml"),
    "no_file": ("*Chart.yaml", "*.toml"),
    "test": ("tests/test_claims.py::test_claims_are_found", "tests/test_claims.py::test_x"),
    "document": ("docs/safety.md#the-ten-rules", "docs/safety.md#the-eleven-rules"),
    "refused": ("gc plan x => there is no repository 'x'", "gc plan x => there is no store"),
}


def test_a_proof_that_does_not_hold_is_found() -> None:
    for kind, (good, bad) in GOOD_AND_BAD.items():
        assert claims.holds(kind, good), kind
        assert not claims.holds(kind, bad), kind
    assert not claims.holds("refused", "repo list => ")
    assert not claims.holds("version", "0.0.1")
    assert not claims.holds("test", "tests/test_nothing.py::test_x")
    assert not claims.holds("document", "docs/nothing.md")


def test_what_the_program_no_longer_has_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names come from the program as it is, not from a list."""
    left = [each for each in commands() if each[0] != "ebbtide gc undo"]
    monkeypatch.setattr(claims, "commands", lambda: iter(left))
    monkeypatch.setattr(claims, "names", claims.names.__wrapped__)
    assert not claims.holds("command", "gc undo")
    assert not claims.holds("option", "gc undo --*")
