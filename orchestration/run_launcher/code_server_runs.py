"""Launch runs as Dagster's default launcher does, in children of the code server, and notice that a run died with it.

A code server that is replaced (its code changed) or killed takes the runs below it along. The next one does not know
them, and Dagster's own launcher can't tell: such a run would stay STARTED for ever, and what is conditional on it would
wait for it. Here Dagster's run monitoring can ask, and marks it as failed.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._grpc.types import GetCurrentRunsResult
from dagster._serdes import deserialize_value

from orchestration.batches.batch_schedule import is_begun_replay

WHY_GONE = (
    "its process is gone: the code server that had started it was restarted (as after a change of the code), or killed"
)


class CodeServerRunLauncher(dg.DefaultRunLauncher):
    """Launch runs in children of their location's code server, and check that they are there."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Return True: Dagster's run monitoring may ask for a run's health."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return FAILED if the code server that listens where the run was started does not have it.

        A code server has a run from before it starts until after it has ended. One that does not answer is being
        replaced, and may still let the run finish. One whose socket is gone does not come back there.
        """
        if is_begun_replay(run.job_name, run.tags):
            return CheckRunHealthResult(WorkerStatus.RUNNING, "the batch sensor ends it, or requests it again")
        client = self._get_grpc_client_for_termination(run.run_id)  # type: ignore[no-untyped-call]
        if client is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "it has ended, or no code server runs it")
        if client.socket is not None and not Path(client.socket).exists():
            return CheckRunHealthResult(WorkerStatus.FAILED, WHY_GONE)
        try:
            answer = deserialize_value(client.get_current_runs(), GetCurrentRunsResult)
        except DagsterUserCodeUnreachableError as error:
            return CheckRunHealthResult(WorkerStatus.RUNNING, f"its code server does not answer: {error}")
        if run.run_id in answer.current_runs:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, WHY_GONE)
