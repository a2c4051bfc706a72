"""Commands that tests run to their end, whose output and exit code they look at."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command with options of `subprocess.run`. The caller checks the exit code."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
