"""Jars from Maven Central, fetched once for all runs by the Ivy that PySpark brings.

Not for what the program needs: PySpark's wheel brings that.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from tests.support.commands import captured

JARS_OF_SPARK: Final = Path(pyspark.__file__).parent / "jars"
LIMIT_SECONDS: Final = 600
_PATTERN: Final = "[organisation]-[artifact]-[revision](-[classifier]).[ext]"


class Unreachable(Exception):
    """Ivy could not fetch everything."""


def fetched_jars(name: str, modules: Sequence[str], *, without: Iterable[str]) -> list[Path]:
    """The jars of modules `GROUP:NAME:VERSION` and of what they need.

    Behind a version, `:CLASSIFIER` names a jar in place of the module's own, which has none.

    `without` are the groups, or single modules `GROUP:NAME`, that are left out. They are kept below
    `name` in the user's cache directory. Raises Unreachable.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    kept = Path(cache, "ebbtide", "jars", name)
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as directory:
            description = Path(directory, "ivy.xml")
            description.write_text(_description(modules, without))
            _retrieve(description, Path(directory, "jars"))
            # Another process may have been faster.
            with suppress(OSError):
                Path(directory, "jars").rename(kept)
    return sorted(kept.glob("*.jar"))


def _description(modules: Iterable[str], without: Iterable[str]) -> str:
    lines = []
    for module in modules:
        group, name, version, *classifiers = module.split(":")
        artifacts = (
            f'<artifact name="{name}" type="jar" ext="jar"'
            + (f' m:classifier="{each}"/>' if each else "/>")
            for each in classifiers
        )
        lines.append(
            f'<dependency org="{group}" name="{name}" rev="{version}">{"".join(artifacts)}'
            "</dependency>"
        )
    for each in without:
        group, _, name = each.partition(":")
        lines.append(f'<exclude org="{group}" module="{name or "*"}"/>')
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="tests" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f'<dependencies defaultconfmapping="default->default">{"".join(lines)}</dependencies>'
        "</ivy-module>"
    )


def _retrieve(description: Path, target: Path) -> None:
    (ivy,) = JARS_OF_SPARK.glob("ivy-*.jar")
    home = os.environ.get("JAVA_HOME")
    java = "java" if home is None else f"{home}/bin/java"
    fetching: list[str | Path] = ["-ivy", description, "-cache", description.parent / "cache"]
    fetching += ["-confs", "default", "-retrieve", target / _PATTERN]
    done = captured(
        [java, "-XX:TieredStopAtLevel=1", "-jar", ivy, *fetching], timeout=LIMIT_SECONDS
    )
    if done.returncode:
        raise Unreachable((done.stdout + done.stderr)[-4000:])
