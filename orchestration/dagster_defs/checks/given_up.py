"""Tell a user's failure sensor whether the batch of a failed run was given up.

The attempt's number does not show this, because an attempt that only waited (for an unavailable block store, for
example) has a number but is not counted. The driver log shows it. This module changes nothing.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from orchestration.batches.batch_schedule import ATTEMPT_TAG, BATCH_TIME_TAG, PIPELINE_TAG
from orchestration.declarations.settings import Settings
from tracker_store.batches.batches import get_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect_once
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Mapping

# The tracker notices a dead process only when its heartbeat counter has not moved for 10 s.
WAIT_SECONDS = 30.0
_PAUSE_SECONDS = 0.25
# Dagster's own: the run that this one executes again, with all its tags.
PARENT_RUN_TAG = "dagster/parent_run_id"


def is_given_up(tags: Mapping[str, str], *, wait_seconds: float = WAIT_SECONDS) -> bool:
    """Return whether the failed run with these tags was its batch's last attempt, after which it is QUARANTINED.

    If the driver log does not show the end of the attempt yet, wait for it for at most `wait_seconds`. Only one attempt
    of a batch is its last, so a sensor that asks about each failed run gets True once per batch: a run that a person or
    Dagster executes again is no attempt of the batch.
    Raises DatabaseUrlMissingError and DriverLogError.
    """
    if PARENT_RUN_TAG in tags:
        return False
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
