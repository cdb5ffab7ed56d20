"""Find runs handed to batch drivers that will never end: their driver is dead, or no driver came for them.

There are two callers: Dagster's run monitoring, if it is on, for runs that have started, and the batch sensor for runs
that have not, which Dagster does not monitor. This module knows nothing of Dagster; the caller ends the run there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.batches.run_queue import WorkerState, run_worker, withdraw_run

if TYPE_CHECKING:
    import sqlalchemy as sa

# A dead driver is started again in less than this many seconds; a waiting run is not given up before.
ABANDONED_SECONDS = 60.0


def why_lost(connection: sa.Connection, run_id: str) -> str | None:
    """Return why no driver will run it any more; None while one may, and for a run that was never handed over.

    A run that no driver came for is also withdrawn, so that a driver that starts now doesn't run a given-up run. Raises
    DriverLogError.
    """
    worker = run_worker(connection, run_id)
    if worker is None:
        return None
    if worker.state is WorkerState.LOST:
        return f"batch driver {worker.driver}: {worker.why}"
    if worker.state is WorkerState.ABANDONED and worker.seconds > ABANDONED_SECONDS:
        return worker.why if withdraw_run(connection, run_id) else None
    return None
