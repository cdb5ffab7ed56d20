"""Launch runs as Dagster's default launcher does, in children of the code server, and notice that a run died with it.

A code server that is replaced (its code changed) or killed takes the runs below it along. The next one does not know
them, and Dagster's own launcher can't tell: such a run would stay STARTED for ever, and what is conditional on it would
wait for it. Here Dagster's run monitoring can ask, and marks it as failed.
"""

from __future__ import annotations

import json

import dagster as dg
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus

from orchestration.batches.batch_schedule import is_begun_replay
from orchestration.run_launcher.dagster_internals import GRPC_INFO_TAG, current_runs

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
        """Return FAILED if a code server answers at the Unix socket where the run was started, and does not have it.

        A code server has a run from before it starts until after it has ended. Nothing else is a proof: one that does
        not answer may still let the run finish, and a socket that is missing may be there for other processes (with
        systemd's PrivateTmp). Without a proof the answer is RUNNING, because Dagster ends a run that is UNKNOWN.
        """
        if is_begun_replay(run.job_name, run.tags):
            return CheckRunHealthResult(WorkerStatus.RUNNING, "the batch sensor ends it, or requests it again")
        try:
            path = json.loads(run.tags.get(GRPC_INFO_TAG, "{}")).get("socket")
            if path is None:
                why = "no code server runs it, or one behind an address, which may be one of several"
                return CheckRunHealthResult(WorkerStatus.RUNNING, why)
            lost = run.run_id not in current_runs(path)
        except Exception as error:  # noqa: BLE001  also of Dagster's internals: monitoring goes on without an answer
            return CheckRunHealthResult(WorkerStatus.RUNNING, f"its code server can't be asked: {error!r}")
        if lost:
            return CheckRunHealthResult(WorkerStatus.FAILED, WHY_GONE)
        return CheckRunHealthResult(WorkerStatus.RUNNING)
