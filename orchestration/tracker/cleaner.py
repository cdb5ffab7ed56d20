"""Clean-up: rows that nobody can ask for any more, then the files that no row names (docs/parity.md, T06, W09, W11).

What may go is the driver log's to decide (``functions/clean_up_receiver.sql``); this only asks again and again, in
bounded pieces, and unlinks files. It may be killed anywhere: the next run finds what was left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_store.errors import BlockStoreError
from tracker_store.cleanup import (
    clean_up_keys,
    clean_up_offsets,
    clean_up_receiver,
    cleanable_receivers,
    forget_segment,
    segments_to_delete,
)
from tracker_store.history import clean_up_events, clean_up_history, pipelines_with_history

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    import sqlalchemy as sa

    from receiver_runtime.block_store.interface import BlockStore

# A statement's worth of rows: some tens of milliseconds.
ROWS_PER_STATEMENT = 5_000
# One call's worth: the leader has a heartbeat to keep, and what is left waits for the next call.
STATEMENTS_PER_CALL = 20
SEGMENTS_PER_CALL = 200
# A database that is restored from a backup of the last hour still finds its files.
RESTORE_WINDOW = timedelta(hours=1)
# A store that is away holds a call up for so long.
FAILING_SECONDS = 5.0
# Of a stream whose declaration is older than that setting.
KEY_WINDOW = timedelta(days=7)
# How long finished batches, events and ended processes are shown.
HISTORY = timedelta(days=14)

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
    history: int = 0


class Cleaner:
    """Cleans one driver log and block store. One thread at a time."""

    def __init__(
        self,
        store: Callable[[sa.Connection], BlockStore],
        *,
        before: Callable[[sa.Connection], None] | None = None,
        restore_window: timedelta = RESTORE_WINDOW,
        history: timedelta = HISTORY,
        rows_per_statement: int = ROWS_PER_STATEMENT,
    ) -> None:
        """Work on what `store` opens, anew for each call, after `before`.

        Files younger than `restore_window` stay, whatever became of their rows.
        What has happened is forgotten after `history`.
        """
        self._open_store = store
        self._before = before
        self._store: BlockStore | None = None
        self._history = history
        self._restore_window = restore_window
        self._rows = rows_per_statement
        # By receiver: the last segment that could not be deleted, where there may be others behind it.
        self._tried: dict[int, int] = {}

    def cleanup_old_batches(
        self, connection: sa.Connection, threshold: datetime, *, term: int | None = None
    ) -> CleanupReport:
        """Take away what is older than `threshold` and what no pipeline, window, replay or kept batch can ask for.

        With `term` only while that is the leader's. Raises DeposedError.
        """
        # A store may have been attached since.
        self._store = None
        if self._before is not None:
            self._before(connection)
        blocks = records = unread = links = keys = segments = 0
        more = False
        streams: set[int] = set()
        for receiver in cleanable_receivers(connection):
            streams.add(receiver.stream_id)
            for statement in range(STATEMENTS_PER_CALL):
                cleaned = clean_up_receiver(
                    connection, receiver_id=receiver.receiver_id, threshold=threshold, max_rows=self._rows, term=term
                )
                blocks += cleaned.blocks
                records += cleaned.records
                unread += cleaned.unread_records
                if not cleaned.more:
                    break
                more |= statement == STATEMENTS_PER_CALL - 1
            segments += self._delete_segments(connection, receiver.receiver_id, term)
        for stream_id in streams:
            links += clean_up_offsets(connection, stream_id=stream_id, max_rows=self._rows, term=term)
            for statement in range(STATEMENTS_PER_CALL):
                gone = clean_up_keys(connection, stream_id=stream_id, window=KEY_WINDOW, max_rows=self._rows, term=term)
                keys += gone
                if gone < self._rows:
                    break
                more |= statement == STATEMENTS_PER_CALL - 1
        history, more_history = self._forget(connection, term)
        more |= more_history
        if unread:
            log.warning("blocks went that nothing had read: their stream's retention is over", records=unread)
        if blocks or segments:
            log.info("cleaned up", blocks=blocks, records=records, segments=segments)
        return CleanupReport(blocks, records, unread, links, keys, segments, more, history)

    def _forget(self, connection: sa.Connection, term: int | None) -> tuple[int, bool]:
        """Take away rows of what happened long ago; how many, and whether there are more."""
        parts = [
            clean_up_history(connection, pipeline_id=pipeline, keep=self._history, max_rows=self._rows, term=term)
            for pipeline in pipelines_with_history(connection)
        ]
        parts.append(clean_up_events(connection, keep=self._history, max_rows=self._rows, term=term))
        return sum(part.rows for part in parts), any(part.more for part in parts)

    def _delete_segments(self, connection: sa.Connection, receiver_id: int, term: int | None) -> int:
        found = segments_to_delete(
            connection,
            receiver_id=receiver_id,
            restore_window=self._restore_window,
            limit=SEGMENTS_PER_CALL,
            after=self._tried.pop(receiver_id, 0),
            term=term,
        )
        deleted = 0
        give_up_at = time.monotonic() + FAILING_SECONDS
        for segment in found:
            try:
                store = self._store = self._store or self._open_store(connection)
                store.delete_segment(segment.path)
            except (OSError, BlockStoreError) as error:
                # A replica that is away, say. The row stays, and so the file is asked for again; the next call goes on
                # behind it, since what can't be deleted must not hide what can.
                self._tried[receiver_id] = segment.segment_id
                log.warning("a segment could not be deleted yet", path=segment.path, error=str(error))
                if time.monotonic() > give_up_at:
                    break
            else:
                forget_segment(connection, segment_id=segment.segment_id, term=term)
                deleted += 1
        return deleted
