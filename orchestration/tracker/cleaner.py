"""Clean-up: rows that nobody can ask for any more, then the files that no row names (design §4; T06, W09, W11).

What may go is the driver log's to decide (``functions/clean_up_receiver.sql``); this only asks again and again, in
bounded pieces, and unlinks files. It may be killed anywhere: the next run finds what was left.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from tracker_store.cleanup import (
    clean_up_keys,
    clean_up_offsets,
    clean_up_receiver,
    cleanable_receivers,
    forget_segment,
    segments_to_delete,
)

if TYPE_CHECKING:
    from datetime import datetime

    import sqlalchemy as sa

    from receiver_runtime.block_store.local import LocalBlockStore

# A statement's worth of rows: some tens of milliseconds.
ROWS_PER_STATEMENT = 5_000
# One call's worth: the leader has a heartbeat to keep, and what is left waits for the next call.
STATEMENTS_PER_CALL = 20
SEGMENTS_PER_CALL = 200
# A database that is restored from a backup of the last hour still finds its files.
RESTORE_WINDOW = timedelta(hours=1)
KEY_WINDOW = timedelta(days=7)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What one call took away; `more`: there is more to do now."""

    blocks: int = 0
    records: int = 0
    unread_records: int = 0
    links: int = 0
    keys: int = 0
    segments: int = 0
    more: bool = False


class Cleaner:
    """Cleans one driver log and block store. One thread at a time."""

    def __init__(
        self,
        store: LocalBlockStore,
        *,
        restore_window: timedelta = RESTORE_WINDOW,
        rows_per_statement: int = ROWS_PER_STATEMENT,
    ) -> None:
        """Work on `store`; files younger than `restore_window` stay, whatever became of their rows."""
        self._store = store
        self._restore_window = restore_window
        self._rows = rows_per_statement

    def cleanup_old_batches(self, connection: sa.Connection, threshold: datetime) -> CleanupReport:
        """Take away what is older than `threshold` and what no pipeline, window, replay or kept batch can ask for."""
        blocks = records = unread = links = keys = segments = 0
        more = False
        streams: set[int] = set()
        for receiver in cleanable_receivers(connection):
            streams.add(receiver.stream_id)
            for statement in range(STATEMENTS_PER_CALL):
                cleaned = clean_up_receiver(
                    connection, receiver_id=receiver.receiver_id, threshold=threshold, max_rows=self._rows
                )
                blocks += cleaned.blocks
                records += cleaned.records
                unread += cleaned.unread_records
                if not cleaned.more:
                    break
                more |= statement == STATEMENTS_PER_CALL - 1
            segments += self._delete_segments(connection, receiver.receiver_id)
        for stream_id in streams:
            links += clean_up_offsets(connection, stream_id=stream_id, max_rows=self._rows)
            keys += clean_up_keys(connection, stream_id=stream_id, window=KEY_WINDOW, max_rows=self._rows)
        if unread:
            log.warning("blocks went that nothing had read: their stream's retention is over", records=unread)
        if blocks or segments:
            log.info("cleaned up", blocks=blocks, records=records, segments=segments)
        return CleanupReport(blocks, records, unread, links, keys, segments, more)

    def _delete_segments(self, connection: sa.Connection, receiver_id: int) -> int:
        found = segments_to_delete(
            connection,
            receiver_id=receiver_id,
            restore_window=self._restore_window,
            limit=SEGMENTS_PER_CALL,
        )
        for segment in found:
            self._store.delete_segment(segment.path)
            forget_segment(connection, segment_id=segment.segment_id)
        return len(found)
