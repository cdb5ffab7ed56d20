"""Import all undocumented names of Dagster that batch drivers and checks of runs use, in one place.

Dagster is pinned exactly (pyproject.toml), and a test names each of these, so that a change of the pin shows what else
changed. `RunLauncher` and its argument types are Dagster's extension point; launchers import them themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster._core.events import EngineEventData
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.impl import core_execute_run
from dagster._grpc.types import GetCurrentRunsResult
from dagster._serdes import deserialize_value
from dagster._utils.hosted_user_process import recon_job_from_origin
from dagster._utils.interrupts import capture_interrupts, pop_captured_interrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "GRPC_INFO_TAG",
    "EngineEventData",
    "capture_interrupts",
    "core_execute_run",
    "current_runs",
    "pop_captured_interrupt",
    "recon_job_from_origin",
]


def current_runs(path: str) -> Sequence[str]:
    """Return the ids of the runs below the code server that listens at a Unix socket; any error if it can't tell."""
    from dagster._grpc.client import DagsterGrpcClient  # noqa: PLC0415  loads gRPC, which a batch driver does not need

    return deserialize_value(DagsterGrpcClient(socket=path).get_current_runs(), GetCurrentRunsResult).current_runs
