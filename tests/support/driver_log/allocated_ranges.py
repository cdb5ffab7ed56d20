"""Read what was allocated to a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tracker_store.batches.received_block_tracker import ReceivedBlockTracker


def ranges_of_batch(tracker: ReceivedBlockTracker, batch_time: datetime) -> Sequence[sa.Row[Any]]:
    """Return the batch's ranges as (receiver_id, first, last, records, bytes), one per receiver that has any.

    Markers count as sequences, but hold no records.
    """
    return tracker._connection.execute(
        sa.text("""
            SELECT receiver_id, lower(sequences) AS first, upper(sequences) - 1 AS last, records, bytes
            FROM forebay.batch_allocations WHERE pipeline_id = :pipeline AND batch_time = :time ORDER BY receiver_id
        """),
        {"pipeline": tracker._pipeline_id, "time": batch_time},
    ).all()
