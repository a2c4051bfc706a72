"""The package that users install: its metadata, its files, and what works without any extra."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ebbtide.errors import ExitCode
from tests.support.commands import captured
from tests.support.templates import old_lake

pytestmark = pytest.mark.xdist_group("package")  # which is built once

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
from setuptools import build_meta
target = sys.argv[1]
build_meta.build_wheel(target)
build_meta.build_sdist(target)
"""
"""A build as pip's, with the tools that are here. Each build replaces `sys.argv`."""
EXTRAS = {"all", "aws", "connect", "fsspec", "iceberg", "icechunk", "lakefs"}
EXTRAS |= {"oidc", "otel", "postgres", "s3", "server", "spark"}
BYTES_MAX = 360 * 2**20
BLOCK = 4096
PLAIN = """
import json, os, sys
absent = frozenset(json.loads(os.environ["ABSENT"]))

class Absent:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from ebbtide.program import main
main()
"""
"""The program, where modules are absent."""


@dataclass(frozen=True)
class Package:
    """An unpacked wheel, its metadata, and the files of the source archive below its directory."""

    directory: Path
    metadata: Message
    source_files: frozenset[str]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Built from a copy of the files that a checkout has."""
    place = tmp_path_factory.mktemp("package")
    checkout, built = place / "checkout", place / "built"
    built.mkdir()
    without = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", checkout / "src", ignore=without)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    command = [sys.executable, "-c", BUILD, str(built)]
    subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with ZipFile(wheel) as files:
        files.extractall(place / "unpacked")
    (found,) = (place / "unpacked").glob("*.dist-info/METADATA")
    with tarfile.open(source) as archive:
        names = frozenset(name.partition("/")[2] for name in archive.getnames())
    return Package(place / "unpacked", Parser().parsestr(found.read_text()), names)


def requirements(lines: list[str], extra: str = "") -> Iterator[Requirement]:
    """The requirements among the lines that apply here, for an extra or for none."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def closure(wanted: Iterator[Requirement]) -> set[str]:
    """The distributions that the requirements bring, as far as they are here."""
    found: set[str] = set()
    waiting = [(each.name, extra) for each in wanted for extra in ("", *each.extras)]
    seen = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(canonicalize_name(name))
        for each in requirements(lines, extra):
            waiting += [(each.name, more) for more in ("", *each.extras)]
    return found


def test_the_metadata_is_complete(package: Package) -> None:
    metadata = package.metadata
    assert metadata["Name"] == "ebbtide"
    assert all(metadata[name] for name in ("Version", "Summary", "Requires-Python", "Keywords"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip() == (ROOT / "README.md").read_text().strip()
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS
    lines = metadata.get_all("Requires-Dist", [])
    (whole,) = [each for each in requirements(lines, "all") if each.name == "ebbtide"]
    assert whole.extras == EXTRAS - {"all"}
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)}
    assert versions <= set(metadata.get_all("Classifier", []))


def test_the_files_are_there(package: Package) -> None:
    """All that the checkout has below `src/ebbtide`, in the wheel and in the source archive."""
    inside = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "ebbtide").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in inside if not (package.directory / name).is_file()} == set()
    assert {f"src/{name}" for name in inside} <= package.source_files
    assert {"LICENSE", "README.md", "pyproject.toml"} <= package.source_files


def size_of(paths: Iterable[Path]) -> int:
    """The bytes of files on a disk, in whole blocks as `du` counts them, without bytecode."""
    there = (each for each in paths if each.suffix != ".pyc" and each.is_file())
    return sum(-(-each.stat().st_size // BLOCK) * BLOCK for each in there)


def test_a_plain_installation_is_below_360_mb(package: Package) -> None:
    """As docs/deployment.md promises."""
    needed = closure(requirements(package.metadata.get_all("Requires-Dist", [])))
    sizes = {
        name: size_of(Path(str(each.locate())) for each in distribution(name).files or [])
        for name in needed
    }
    sizes["ebbtide"] = size_of(package.directory.rglob("*"))
    assert sizes["pyarrow"] > 100 * 2**20, "files are counted"
    largest = sorted(((size >> 20, name) for name, size in sizes.items()), reverse=True)[:8]
    assert sum(sizes.values()) < BYTES_MAX, largest


@pytest.fixture(scope="module")
def plain(package: Package) -> dict[str, str]:
    """The environment of a program where no extra is installed."""
    lines = package.metadata.get_all("Requires-Dist", [])
    installed = closure(requirements(lines))
    assert not installed & {"arro3-core", "fastapi", "pandas", "psycopg", "pyspark", "zstandard"}
    absent = [
        module
        for module, names in packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & (installed | {"ebbtide", "coverage"})
    ]
    assert {"fastapi", "pandas", "pyspark", "zstandard"} <= set(absent)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("EBBTIDE_", "SPARK_"))}
    return kept | {"PYTHONPATH": str(package.directory), "ABSENT": json.dumps(absent)}


def run(
    environment: Mapping[str, str], *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PLAIN, *arguments]
    return captured(command, env={**environment, **more})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain") / "store"
    with old_lake(directory, lease_ttl=timedelta(0)) as lake:
        lake.objects.put("main", "file", b"text")
        lake.objects.delete("main", "file")
    return directory


def test_a_collection_without_any_extra(plain: Mapping[str, str], store: Path) -> None:
    collect = ("gc", "run", "lake", "--engine", "duckdb", "--grace", "0s", "--unsafe", "--yes")
    done = run(plain, *collect, "--json", EBBTIDE_STORE=str(store))
    assert done.returncode == ExitCode.DONE, done
    assert not [path for path in store.glob("storage/lake/data/**/*") if path.is_file()]
    assert run(plain, "init", str(store.with_name("other"))).returncode == ExitCode.DONE


@pytest.mark.parametrize(
    ("extra", "arguments", "settings"),
    [
        ("server", ("serve", "--port", "0"), {}),
        ("spark", ("gc", "run", "lake", "--yes", "--engine", "spark"), {}),
        ("connect", ("gc", "run", "lake", "--yes", "--master", "sc://localhost"), {}),
        ("icechunk", ("gc", "plan", "icechunk:/nowhere", "--engine", "duckdb"), {}),
        ("lakefs", ("gc", "plan", "lakefs:lake", "--engine", "duckdb"), {}),
        ("postgres", ("repo", "list"), {"EBBTIDE_DATABASE_URL": "postgresql://localhost/none"}),
        (
            "oidc",
            ("serve", "--port", "0"),
            {"EBBTIDE_OIDC_ISSUER": "https://a", "ABSENT": '["jwt"]'},
        ),
        ("s3", ("gc", "plan", "icechunk:s3://bucket/lake", "--engine", "duckdb"), {}),
    ],
)
def test_a_missing_extra_is_named(
    plain: Mapping[str, str],
    store: Path,
    extra: str,
    arguments: tuple[str, ...],
    settings: dict[str, str],
) -> None:
    if extra == "s3":
        absent = json.loads(plain["ABSENT"])
        there = {"flatbuffers", "zstandard"}
        settings = {"ABSENT": json.dumps([name for name in absent if name not in there])}
    done = run(plain, *arguments, EBBTIDE_STORE=str(store), **settings)
    assert done.returncode == ExitCode.FAILED, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = shlex.split(line.partition(": pip install ")[2])
    assert set(map(Requirement, named)) == set(map(Requirement, packages(extras, extra)))


def packages(extras: Mapping[str, list[str]], name: str) -> Iterator[str]:
    """The packages of an extra, and of those that it includes."""
    for each in extras[name]:
        included = each.removeprefix("ebbtide[").removesuffix("]")
        yield from [each] if included == each else packages(extras, included)
