"""An op and an asset for Dagster.

Source: Dagster's documentation, "Ops" and "Assets".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster import AssetsDefinition, MaterializeResult, OpDefinition, asset, op

from ebbtide.integrations.collecting import collect, figures


def run_op(name: str, repository: str, **arguments: Any) -> OpDefinition:
    """Returns an op that collects a repository, with the arguments of
    `integrations.collecting.collect`. Its output is `collecting.figures` of the run. It fails if a
    gate refuses or files are left."""

    @op(name=name)  # type: ignore[untyped-decorator]  # Dagster is not installed here
    def collected() -> Mapping[str, Any]:
        return figures(collect(repository, **arguments))

    return collected


def run_asset(
    name: str, repository: str, *, asset_options: Mapping[str, Any] | None = None, **arguments: Any
) -> AssetsDefinition:
    """Returns an asset that stands for the collected repository. A materialization is a run, and
    its metadata has the figures of the run. `asset_options` are arguments of Dagster's `asset`,
    such as `deps`; the others are those of `run_op`."""

    @asset(name=name, **(asset_options or {}))  # type: ignore[untyped-decorator]
    def collected() -> MaterializeResult:
        return MaterializeResult(metadata=figures(collect(repository, **arguments)))

    return collected
