"""The collector on a real server of Azure's interface."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from ebbtide.arrow import texts
from ebbtide.cli.main import app as cli_app
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store

SETTINGS: Final = Settings(lease_ttl=timedelta(0), trash_time=timedelta(0), share_max=1.0)
