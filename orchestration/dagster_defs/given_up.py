"""Whether the batch of a run that failed was given up, for a failure sensor of the user's.

The attempt's number does not say so: one that only waited (for a block store that was away, say) has a number and is
not counted. The driver log does. Changes nothing.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from orchestration.batch_schedule import ATTEMPT_TAG, BATCH_TIME_TAG, PIPELINE_TAG
from orchestration.settings import Settings
from tracker_store.batches import get_batch
from tracker_store.engine import connect_once
from tracker_store.pipelines import get_pipeline
from tracker_store.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of a process that died, the tracker knows when its heartbeat has stood still for ten seconds.
WAIT_SECONDS = 30.0
_PAUSE_SECONDS = 0.25


def is_given_up(tags: Mapping[str, str], *, wait_seconds: float = WAIT_SECONDS) -> bool:
    """Whether the failed batch run with these tags was its batch's last attempt: the batch is QUARANTINED after it.

    Where the driver log has not noticed yet that the attempt has ended, it waits for so long at most. A batch is given
    up after one of its attempts alone, so whoever asks about each failed run hears of each batch once.
    Raises DatabaseUrlMissingError and DriverLogError.
    """
    batch_time, attempt = datetime.fromisoformat(tags[BATCH_TIME_TAG]), int(tags[ATTEMPT_TAG])
    give_up_at = time.monotonic() + wait_seconds
    with connect_once(Settings().require_database_url(), application_name="forebay given up") as connection:
        pipeline_id = get_pipeline(connection, tags[PIPELINE_TAG]).pipeline_id
        while True:
            batch = get_batch(connection, pipeline_id, batch_time)
            if batch is None or batch.attempt != attempt:
                return False
            if batch.state is not BatchState.RUNNING or time.monotonic() > give_up_at:
                return batch.state is BatchState.QUARANTINED
            connection.commit()
            time.sleep(_PAUSE_SECONDS)
