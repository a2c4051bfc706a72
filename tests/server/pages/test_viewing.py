"""Files on a page: shown as image, table or text, or saved; nothing in a file runs."""

from __future__ import annotations

import io
import re
import struct
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.ids import new_id
from ebbtide.server.pages import previews
from ebbtide.server.pages.previews import FirstRows, TableUnreadable, read_first_rows
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.server.pages.conftest import Browser, Browsers
from tests.server.pages.test_pages import rows_of, text_of
from tests.support.lake import HOSTILE

PLACE = "/repositories/lake/object"
SANDBOX = "default-src 'none'; sandbox"


@pytest.fixture
def lake(store: Store) -> Repository:
    return store.create_repository("lake", storage_url=f"memory:{new_id()}")


@pytest.fixture
def reader(browsers: Browsers) -> Browser:
    return browsers(Role.READER)


def png() -> bytes:
    """A picture of one point."""
    sink = io.BytesIO()
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\x80")),
        (b"IEND", b""),
    ):
        sink.write(struct.pack(">I", len(data)) + kind + data)
        sink.write(struct.pack(">I", zlib.crc32(kind + data)))
    return b"\x89PNG\r\n\x1a\n" + sink.getvalue()


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def shown(reader: Browser, path: str) -> str:
    page = reader.get(PLACE, params={"ref": "main", "path": path})
    assert page.status_code == 200, page.text
    return page.text


def test_text_is_shown_and_is_no_markup(lake: Repository, reader: Browser) -> None:
    lake.objects.put("main", "a/notes.md", f"# Größe\n\tx {HOSTILE}\n".encode())
    page = shown(reader, "a/notes.md")
    assert "# Größe\n\tx &lt;script&gt;" in page and HOSTILE not in page
    assert re.search(r'href="[^"]*files\?ref=main&amp;prefix=a%2F"', page)
    lake.objects.put("main", "large", b"y" * 100_000)
    page = shown(reader, "large")
    assert "The first 64 KiB are shown" in page and page.count("y") < 70_000
    lake.objects.put("main", "empty", b"")
    assert "The file is empty" in shown(reader, "empty")
    lake.objects.put("main", "binary", b"\0\1\2")
    assert "neither text, nor an image or table" in shown(reader, "binary")
    gone = reader.get(PLACE, params={"ref": "main", "path": "nothing"})
    assert gone.status_code == 404 and "object_not_found" in gone.text


def test_an_image_is_told_by_its_bytes(lake: Repository, reader: Browser) -> None:
    asked = {"ref": "main", "path": "p"}
    for content_type in (None, "image/png", "application/octet-stream", "text/html"):
        lake.objects.put("main", "p", png(), content_type=content_type)
        is_image = content_type != "text/html"
        assert ("<img " in shown(reader, "p")) is is_image, content_type
        sent = reader.get(f"{PLACE}/content", params=asked | {"as": "image"})
        assert sent.status_code == (200 if is_image else 404), content_type
        if is_image:
            assert sent.content == png() and sent.headers["content-type"] == "image/png"
            assert sent.headers.get_list("content-security-policy") == [SANDBOX]


def test_no_file_runs(lake: Repository, reader: Browser) -> None:
    html = b"<html><script>alert(1)</script>"
    for path, data, content_type in (
        ("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", "image/svg+xml"),
        ("a.html", html, "text/html"),
        ("a.png", html, "image/png"),
    ):
        lake.objects.put("main", path, data, content_type=content_type)
        asked = {"ref": "main", "path": path}
        page = shown(reader, path)
        assert "<img " not in page and data.decode() not in page
        assert reader.get(f"{PLACE}/content", params=asked | {"as": "image"}).status_code == 404
        saved = reader.get(f"{PLACE}/content", params=asked)
        assert saved.content == data
        assert saved.headers["content-type"] == "application/octet-stream"
        attached = f'attachment; filename="{path}"'
        assert saved.headers["content-disposition"].startswith(attached)
        assert saved.headers.get_list("content-security-policy") == [SANDBOX]
        assert saved.headers.get_list("x-content-type-options") == ["nosniff"]
        part = reader.get(f"{PLACE}/content", params=asked, headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content) == (206, data[2:5])
    assert reader.get(f"{PLACE}/content", params={"ref": "main", "path": "y"}).status_code == 404


def test_tables_are_shown(lake: Repository, reader: Browser) -> None:
    table = pa.table({"n": range(250), "name": [HOSTILE] * 250, "deep": [[1, None]] * 250})
    lake.objects.put("main", "t", parquet(table))
    page = shown(reader, "t")
    rows = rows_of(page)
    assert rows[0] == "n int64 name string deep list<element: int64>"
    assert len(rows) == 101 and rows[1] == f"0 {HOSTILE} [1, None]"
    assert HOSTILE not in page
    assert "250 rows, 3 columns; the first 100 rows are shown" in text_of(page)
    lake.objects.put("main", "t.csv", b'id,text\n007,"two\nlines"\n8,\n')
    rows = rows_of(shown(reader, "t.csv"))
    assert rows == ["id string text string", "007 two lines", "8"]
    lake.objects.put("main", "broken.parquet", b"PAR1" + b"x" * 100 + b"PAR1")
    page = shown(reader, "broken.parquet")
    assert "not shown as a table: it cannot be read as parquet" in page


def test_values_as_text() -> None:
    table = pa.table(
        {
            "b": pa.array([b"\0\1", None]),
            "t": pa.array([2**62 + 1, 0], pa.timestamp("ns")),
            "d": pa.array([None, {"x": 1}]),
            "s": pa.array(["y" * 1000, ""]),
        }
    )

    def first_rows(data: bytes) -> FirstRows:
        return read_first_rows("parquet", len(data), lambda start, end: data[start:end])

    found = first_rows(parquet(table))
    assert found.rows[0][0] == "2 bytes" and found.rows[1][0] is None
    assert found.rows[0][1] == "2116-02-20 23:53:38.427387905"
    assert found.rows[1][2] == "{'x': 1}"
    assert found.rows[0][3] == "y" * previews.CELL_CHARACTERS_MAX + "…"
    wide = first_rows(parquet(pa.table({f"c{n}": [n] for n in range(80)})))
    assert (len(wide.columns), wide.column_count) == (previews.COLUMNS_MAX, 80)
    none = first_rows(parquet(pa.table({"x": pa.array([], pa.int8())})))
    assert (none.rows, none.row_count) == ((), 0)


def test_limits_of_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of a large file need its footer and the pages in front."""
    sink = io.BytesIO()
    numbers = pa.table({"n": pa.array(range(500_000), pa.int64())})
    pq.write_table(numbers, sink, compression="none", use_dictionary=False)
    data, sizes = sink.getvalue(), []

    def read(start: int, end: int) -> bytes:
        sizes.append(end - start)
        return data[start:end]

    assert read_first_rows("parquet", len(data), read).rows[99] == ("99",)
    assert sum(sizes) < len(data) / 4
    for name, value, message in (
        ("READ_BYTES_MAX", 100, "need more than 100 bytes"),
        ("SECONDS_MAX", 0.0, "takes more than 0 seconds"),
    ):
        with monkeypatch.context() as patched, pytest.raises(TableUnreadable, match=message):
            patched.setattr(previews, name, value)
            read_first_rows("parquet", len(data), read)
