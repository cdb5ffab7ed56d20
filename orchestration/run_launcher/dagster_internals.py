"""Import all undocumented names of Dagster that the batch driver uses, in one place.

Dagster is pinned exactly (pyproject.toml), and a test names each of these, so that a change of the pin shows what else
changed. `RunLauncher` and its argument types are Dagster's extension point; ``launcher`` imports them itself.
"""

from __future__ import annotations

from dagster._core.events import EngineEventData
from dagster._grpc.impl import core_execute_run
from dagster._utils.hosted_user_process import recon_job_from_origin
from dagster._utils.interrupts import capture_interrupts, pop_captured_interrupt

__all__ = [
    "EngineEventData",
    "capture_interrupts",
    "core_execute_run",
    "pop_captured_interrupt",
    "recon_job_from_origin",
]
