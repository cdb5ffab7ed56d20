"""A Dagster run launcher that launches nothing and records the requests it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._serdes import ConfigurableClass, ConfigurableClassData

if TYPE_CHECKING:
    from collections.abc import Mapping


class RecordingRunLauncher(RunLauncher[dg.DagsterInstance], ConfigurableClass):
    """A launcher whose `asked` lists the requests, in order."""

    def __init__(self, name: str = "", inst_data: ConfigurableClassData | None = None) -> None:
        self.name = name
        self.asked: list[tuple[str, str]] = []
        self._inst_data = inst_data
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {"name": dg.Field(str, is_required=False)}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        self.asked.append(("launch", context.dagster_run.run_id))

    def terminate(self, run_id: str) -> bool:
        self.asked.append(("terminate", run_id))
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        self.asked.append(("health", run.run_id))
        return CheckRunHealthResult(WorkerStatus.SUCCESS)
