"""Commands that tests run to their end, whose output and exit code they look at."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command with these options of `subprocess.run`. Its exit code is the caller's to
    check."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
