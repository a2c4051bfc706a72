"""Finds a Java installation that Spark runs on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from ebbtide.errors import Failed

JAVA_MIN: Final = 17


def find_java() -> str:
    """Returns JAVA_HOME of a Java that Spark runs on. Raises Failed `java_not_found`, which says
    what to install."""
    for home in _candidates():
        if _version(home) >= JAVA_MIN:
            return str(home)
    raise Failed(
        "java_not_found",
        f"no Java {JAVA_MIN} or newer was found: install one (on Debian: "
        f"apt-get install openjdk-{JAVA_MIN}-jre-headless), set JAVA_HOME, "
        "or run with --master none, which needs no Java",
    )


def _candidates() -> list[Path]:
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    return homes + sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)


def _version(home: Path) -> int:
    """Returns the major version of the Java at `home`, or 0 if it does not run."""
    release = home / "release"
    try:
        for line in release.read_text().splitlines():
            if line.startswith("JAVA_VERSION="):
                return int(line.split('"')[1].split(".")[0])
        output = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=True
        )
        return int(output.stderr.split('"')[1].split(".")[0])
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        return 0
