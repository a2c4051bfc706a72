"""Arvados's own clients, unmodified."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.doors.arvados.store.manifests import BLOCK_BYTES_MAX
from tests.doors.arvados.server.conftest import ArvadosServer
from tests.support.commands import captured

PROGRAMS = Path(sys.executable).parent
FILES = 60
SDK = """
import arvados, contextlib
from arvados.collection import Collection, CollectionReader
from arvados.errors import ApiError
api = arvados.api("v1")
groups, collections = api.groups(), api.collections()
me = api.users().current().execute()["uuid"]

@contextlib.contextmanager
def refused(status):
    try:
        yield
    except ApiError as error:
        assert error.resp.status == status, error
    else:
        raise AssertionError("it was not refused")

def project(name, owner):
    group = {"name": name, "group_class": "project", "owner_uuid": owner}
    return groups.create(body={"group": group}).execute()

made = Collection()
data = bytes(range(256)) * 20_000
with made.open("x/one.txt", "w") as file: file.write("one")
with made.open("two", "wb") as file: file.write(data)
made.save_new(name="sdk")
uuid = made.manifest_locator()
again = Collection(uuid)
again.copy("two", "copy/two"); again.rename("x/one.txt", "y.txt"); again.remove("two"); again.save()
for name in (uuid, again.portable_data_hash()):
    found = CollectionReader(name)
    assert found.open("y.txt").read() == "one" and found.open("copy/two", "rb").read() == data
signed = collections.get(uuid=uuid).execute()["manifest_text"]
assert collections.delete(uuid=uuid).execute()["is_trashed"]
body = {"collection": {"name": "sdk", "manifest_text": signed}}
other = collections.create(body=body).execute()
assert CollectionReader(other["uuid"]).open("y.txt").read() == "one"
with refused(422): collections.untrash(uuid=uuid).execute()
assert collections.untrash(uuid=uuid, ensure_unique_name=True).execute()["name"] == "sdk (2)"

outer = project("sdk outer", me)
inner = project("inner", outer["uuid"])
collections.update(uuid=uuid, body={"collection": {"owner_uuid": inner["uuid"]}}).execute()
groups.trash(uuid=outer["uuid"]).execute()
with refused(404): collections.get(uuid=uuid).execute()
filters = [["is_trashed", "=", True], ["uuid", "in", [outer["uuid"], inner["uuid"]]]]
found = groups.list(filters=filters, include_trash=True).execute()["items"]
assert [each["uuid"] for each in found] == [outer["uuid"]]
project("sdk outer", me)
back = groups.untrash(uuid=outer["uuid"], ensure_unique_name=True).execute()
assert (back["name"], back["is_trashed"]) == ("sdk outer (2)", False)
found = groups.contents(uuid=inner["uuid"]).execute()["items"]
assert [each["name"] for each in found] == ["sdk (2)"]
assert CollectionReader(uuid).open("y.txt").read() == "one"
"""


class Clients:
    """The clients' programs, with a home directory of their own."""

    def __init__(self, arvados: ArvadosServer, home: Path) -> None:
        host = arvados.server.url.removeprefix("https://")
        self.home = home
        self.environment = {
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "HOME": str(home),
            "ARVADOS_API_HOST": host,
            "ARVADOS_API_HOST_INSECURE": "1",
            "ARVADOS_API_TOKEN": arvados.token(),
        }

    def __call__(self, program: str, *arguments: str) -> str:
        """Runs a program; what it printed, without the newline at the end."""
        done = captured([f"{PROGRAMS}/{program}", *arguments], env=self.environment, cwd=self.home)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def put(self, *arguments: str) -> str:
        return self("arv-put", "--no-progress", *arguments)

    def get(self, source: str) -> dict[str, bytes]:
        to = self.home / "got"
        to.mkdir()
        self("arv-get", "--no-progress", f"{source}/", str(to))
        found = contents(to)
        subprocess.run(["rm", "-r", str(to)], check=True)
        return found


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def clients(arvados: ArvadosServer, tmp_path: Path) -> Clients:
    return Clients(arvados, tmp_path)


def test_a_tree_of_files(clients: Clients, tmp_path: Path) -> None:
    tree, drawn = tmp_path / "tree", random.Random(1)
    for number in range(FILES):
        path = tree / f"d {number % 7}" / f"e{number % 3}" / f"f{number} \u00fc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn.randbytes(drawn.randrange(20_000)))
    uuid = clients.put("--name", "tree", str(tree))
    expected = {f"tree/{path}": data for path, data in contents(tree).items()}
    assert clients.get(uuid) == expected
    assert len(clients("arv-ls", uuid).splitlines()) == FILES
    more = tmp_path / "more"
    more.mkdir()
    (more / "new").write_bytes(b"new")
    clients.put("--update-collection", uuid, str(more))
    assert clients.get(uuid) == expected | {"more/new": b"new"}


def test_a_file_of_several_blocks(clients: Clients, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(random.Random(2).randbytes(BLOCK_BYTES_MAX + 1_000_000))
    uuid = clients.put("--trash-after", "7", "--name", "big", str(big))
    assert clients.get(uuid) == {"big": big.read_bytes()}


def test_the_sdk(clients: Clients) -> None:
    """Collections and their names; trees of projects that are trashed and restored whole."""
    clients("python", "-c", SDK)
