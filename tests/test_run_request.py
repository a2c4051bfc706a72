"""The options of a run: what each way of asking for them has, and what a run makes of them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

import ebbtide.server.pages
from ebbtide.api.repositories import CollectedRepository
from ebbtide.errors import InvalidInput
from ebbtide.gc.options import RunOptions
from ebbtide.run_request import RunRequest, ScheduledOptions, ServedOptions, options_of, parsed
from ebbtide.settings import Settings

TEMPLATES = Path(ebbtide.server.pages.__path__[0], "templates")


def test_each_option_reaches_the_run() -> None:
    known = {field.name for field in fields(RunOptions)}
    assert options_of(RunRequest).keys() <= known
    assert options_of(ServedOptions).keys() - {"dry_run"} <= options_of(RunRequest).keys()
    assert "accept_lost_commits" not in options_of(ScheduledOptions)
    assert RunOptions.of(Settings(sizes="all", delete_versions=True)).delete_versions


def test_each_field_of_a_form_is_an_option() -> None:
    macro = TEMPLATES.joinpath("macros.html").read_text().partition("macro run_fields")[2]
    shown = set(re.findall(r'name="(\w+)"', macro))
    assert len(shown) > 3 and shown - {"action"} <= options_of(ServedOptions).keys()


def test_what_is_no_option() -> None:
    kind: Any = CollectedRepository
    for call, name in ((kind.plan, "quarantine"), (kind.sweep, "mode"), (kind.run, "run_dir")):
        with pytest.raises(TypeError, match=name):
            call(None, **{name: "auto"})
    with pytest.raises(TypeError, match="speed"):
        parsed(cast("RunRequest", {"speed": 1}))
    with pytest.raises(InvalidInput, match="no value for mode: write auto, clean, incremental"):
        parsed(cast("RunRequest", {"mode": "fast"}))
