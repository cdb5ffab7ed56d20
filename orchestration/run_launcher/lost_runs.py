"""Which runs that were handed to batch drivers will never end by themselves: whoever had them is dead, or nobody came.

Two ask: Dagster's run monitoring, where it is on, for runs that have begun, and the batch sensor for those that have
not, which Dagster asks nobody about. Knows nothing of Dagster; ending the run there is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.run_queue import WorkerState, run_worker, withdraw_run

if TYPE_CHECKING:
    import sqlalchemy as sa

# A driver that died is started again within less; until then a run that waits is not given up.
ABANDONED_SECONDS = 60.0


def why_lost(connection: sa.Connection, run_id: str) -> str | None:
    """Why nobody will run it any more; None while somebody may, and for a run that was never handed over.

    One that no driver came for is taken back with it, so that a driver which starts just now doesn't run what was given
    up. Raises DriverLogError.
    """
    worker = run_worker(connection, run_id)
    if worker is None:
        return None
    if worker.state is WorkerState.LOST:
        return f"batch driver {worker.driver}: {worker.why}"
    if worker.state is WorkerState.ABANDONED and worker.seconds > ABANDONED_SECONDS:
        return worker.why if withdraw_run(connection, run_id) else None
    return None
