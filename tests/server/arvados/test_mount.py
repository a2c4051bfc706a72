"""`arv-mount`, where the tests are told where it is, and FUSE is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebbtide.store.access.keys import Role
from tests.server.arvados.conftest import ArvadosServer
from tests.server.arvados.test_projects import Caller
from tests.support.server import eventually

VARIABLE = "EBBTIDE_TEST_ARV_MOUNT"
"""Names the program. It needs libfuse, so that it is no dependency of the tests."""
PROGRAM = os.environ.get(VARIABLE, "")
NEEDED = (PROGRAM, shutil.which("fusermount"), Path("/dev/fuse").exists())

pytestmark = pytest.mark.skipif(
    not all(NEEDED), reason=f"needs FUSE, and {VARIABLE} must name arv-mount"
)


@contextmanager
def mounted(arvados: ArvadosServer, place: Path) -> Iterator[Path]:
    """The repository as a directory."""
    place.mkdir()
    home = place.with_suffix(".home")
    home.mkdir()
    environment = os.environ | {
        "ARVADOS_API_HOST": arvados.server.url.removeprefix("https://"),
        "ARVADOS_API_HOST_INSECURE": "1",
        "ARVADOS_API_TOKEN": arvados.token(Role.WRITER),
        "HOME": str(home),
    }
    options = ["--read-write", "--disable-event-listening", "--foreground"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, *options, str(place)], env=environment, stdout=log, stderr=log
        )
        try:
            eventually(lambda: process.poll() is not None or (place / "home").is_dir())
            assert process.poll() is None, (home / "log").read_text()
            yield place
        finally:
            subprocess.run(["fusermount", "-u", "-z", str(place)], check=False)
            process.wait(60)


def test_a_mount(arvados: ArvadosServer, tmp_path: Path) -> None:
    """Projects and collections are made, read, renamed and removed by the mount. A second mount
    reads what the first one wrote."""
    with arvados.http(Role.WRITER) as http:
        _check_mount(arvados, Caller(http), tmp_path)


def _check_mount(arvados: ArvadosServer, writer: Caller, tmp_path: Path) -> None:
    project = writer.send("POST", "/groups", name="mounted")
    filters = [["owner_uuid", "=", project["uuid"]]]
    data = bytes(range(256)) * 5_000
    with mounted(arvados, tmp_path / "first") as top:
        inside = top / "home" / "mounted"
        (inside / "made").mkdir()
        (inside / "made" / "data").write_bytes(data)
        (inside / "made" / "old").write_text("old")
        (inside / "made" / "old").rename(inside / "made" / "new")
        (inside / "made" / "gone").write_text("gone")
        (inside / "made" / "gone").unlink()
        (inside / "made").rename(inside / "renamed")
        (inside / "empty").mkdir()
        (inside / "empty").rmdir()
    assert writer.names("/collections", filters=filters) == ["renamed"]
    (removed,) = [
        item["uuid"]
        for item in writer.get("/collections", filters=filters, include_trash=True)["items"]
        if item["is_trashed"]
    ]
    with mounted(arvados, tmp_path / "second") as top:
        inside = top / "home" / "mounted" / "renamed"
        assert sorted(path.name for path in inside.iterdir()) == ["data", "new"]
        assert (inside / "data").read_bytes() == data
        assert (inside / "new").read_text() == "old"
        assert (top / "by_id" / project["uuid"] / "renamed" / "new").read_text() == "old"
        assert not (top / "by_id" / removed).exists()
    writer.send("POST", f"/collections/{removed}/untrash")
    with mounted(arvados, tmp_path / "third") as top:
        found = (top / "home" / "mounted").iterdir()
        assert {"empty", "renamed"} <= {path.name for path in found}
    writer.send("POST", f"/collections/{removed}/trash")
    trash = writer.names("/collections", filters=filters, include_trash=True)
    assert [name for name in trash if name != "renamed"] == ["empty"]
