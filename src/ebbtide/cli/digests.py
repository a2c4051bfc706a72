"""Writes the summary of a nightly run for mail or chat, as text or as HTML.

A digest has no links and loads nothing. All that it says is in the document of `--json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from ebbtide.cli.local_files import save
from ebbtide.errors import InvalidInput
from ebbtide.gc import FOUND, OUTCOMES
from ebbtide.text import count_text, date_text, escaped, known_size_text

HTML: Final = (".html", ".htm")
FIGURES: Final = ("candidate", "quarantined", "deleted")
HEADS: Final = ("repository", "outcome", *((FOUND | OUTCOMES)[name] for name in FIGURES))
CELL: Final = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"

Document = Mapping[str, Any]
"""The document of `gc run --all --json`."""


def require_writable(files: Iterable[Path]) -> None:
    """Raises InvalidInput `invalid_argument` if the directory of a file does not exist, or the file
    is a directory. Called before the runs, which take long."""
    for file in files:
        if file.is_dir() or not file.absolute().parent.is_dir():
            raise InvalidInput(
                "invalid_argument", f"{file} cannot be written: name a file in a directory"
            )


def write_digest(file: Path, document: Document, at: datetime) -> None:
    """Writes a digest, as HTML if the name of the file ends so. Raises as `save`."""
    text = html_of(document, at) if file.suffix.lower() in HTML else text_of(document, at)
    save([text.encode()], file)


def text_of(document: Document, at: datetime) -> str:
    """Returns the digest as plain text."""
    rows = [HEADS, *_rows(document)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    notes = [f"{name}: {text}" for name, text in _notes(document)]
    return "\n".join([_title(document, at), "", *table, *([""] if notes else []), *notes, ""])


def html_of(document: Document, at: datetime) -> str:
    """Returns the digest as an HTML page, without scripts and style sheets, as mail needs it."""
    rows = "".join(_row("td", row) for row in _rows(document))
    notes = "".join(
        f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in _notes(document)
    )
    title = escape(_title(document, at))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title></head>"
        f'<body style="font-family:sans-serif"><h1 style="font-size:1.1em">{title}</h1>'
        f'<table style="border-collapse:collapse">{_row("th", HEADS)}{rows}</table>'
        f"{'<ul>' + notes + '</ul>' if notes else ''}</body></html>\n"
    )


def _row(cell: str, texts: Sequence[str]) -> str:
    scope = ' scope="col"' if cell == "th" else ""
    cells = "".join(f'<{cell}{scope} style="{CELL}">{escape(text)}</{cell}>' for text in texts)
    return f"<tr>{cells}</tr>"


def _title(document: Document, at: datetime) -> str:
    totals = document["totals"]
    repositories = count_text(totals["repository_count"], "repository", "repositories")
    failed = totals["error_count"]
    end = f"{failed} not done" if failed else "all done"
    return f"Ebbtide, {date_text(at)} UTC: {repositories}, {end}"


def _rows(document: Document) -> list[tuple[str, ...]]:
    found = [
        (escaped(each["repository"]), each["state"], *_figures(each))
        for each in document["repositories"]
    ]
    if len(found) > 1:
        found.append(("(all)", "", *_figures(document["totals"])))
    return found


def _figures(counted: Document) -> list[str]:
    """Returns the texts of the figures: files with their size."""
    return [
        count_text(counted[f"{name}_count"], "file")
        + (f", {known_size_text(counted[f'{name}_bytes'])}" if counted[f"{name}_count"] else "")
        for name in FIGURES
    ]


def _notes(document: Document) -> list[tuple[str, str]]:
    """Returns the errors and warnings, each with its repository."""
    found = []
    for each in document["repositories"]:
        name, error = escaped(each["repository"]), each["error"]
        if error is not None:
            found.append((name, escaped(f"{error['kind']}: {error['message']}")))
        found += [(name, escaped(warning)) for warning in each["warnings"]]
    return found
