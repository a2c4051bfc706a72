"""An operator for Airflow, tried with version 3.

Source: Airflow's documentation, "Creating a custom Operator".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.models import BaseOperator

from ebbtide.integrations.collecting import collect, figures


class EbbtideRunOperator(BaseOperator):  # type: ignore[misc]  # Airflow is not installed here
    """Collects a repository: plans a run and sweeps it.

    The arguments are those of `integrations.collecting.collect`. `repository`, `store` and
    `options` are templates. The task's value is `collecting.figures` of the run. The task fails if
    a gate refuses or files are left; Airflow may repeat it.
    """

    template_fields: ClassVar[Sequence[str]] = ("repository", "store", "options")

    def __init__(
        self,
        *,
        repository: str,
        store: str | None = None,
        master: str | None = None,
        dry_run: bool = False,
        options: Mapping[str, Any] | None = None,
        **arguments: Any,  # those of BaseOperator
    ) -> None:
        super().__init__(**arguments)
        self.repository = repository
        self.store = store
        self.master = master
        self.plans_only = dry_run  # BaseOperator has a method `dry_run`
        self.options = options or {}

    def execute(self, context: Any) -> dict[str, str | int | None]:  # a mapping of Airflow's
        """Runs the task. Returns the figures of the run, and logs them."""
        del context
        report = collect(
            self.repository,
            store=self.store,
            master=self.master,
            dry_run=self.plans_only,
            options=self.options,
        )
        for warning in report.told:
            self.log.warning("%s", warning)
        found = figures(report)
        self.log.info("run of %s: %s", self.repository, found)
        return found
