"""Clean up: delete rows that nothing can need again, then the files that no row names (docs/parity.md, T06, W09, W11).

The driver log decides what may be deleted (``functions/clean_up_receiver.sql``); this module only asks repeatedly, in
bounded pieces, and deletes files. It may be killed at any point: the next run finds what is left.
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

# Most rows per statement: it takes some tens of milliseconds.
ROWS_PER_STATEMENT = 5_000
# Most statements per receiver or stream in one call, and segments per receiver: they bound a call, because the leader
# has a heartbeat to keep. The rest waits for the next call.
STATEMENTS_PER_CALL = 20
SEGMENTS_PER_CALL = 200
# How long a sealed file stays at least: a database restored from a backup of the last hour still finds its files.
RESTORE_WINDOW = timedelta(hours=1)
# How long, in seconds per receiver, an unavailable store may delay a call.
FAILING_SECONDS = 5.0
# Deduplication window of a stream whose declaration is older than the setting for it.
KEY_WINDOW = timedelta(days=7)
# How long finished batches, events and ended processes are kept.
HISTORY = timedelta(days=14)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """Counts of what one call deleted; `more`: there is more to do now."""

    blocks: int = 0
    records: int = 0
    unread_records: int = 0
    links: int = 0
    keys: int = 0
    segments: int = 0
    more: bool = False
    history: int = 0


class Cleaner:
    """Clean-up of one driver log and block store. For one thread at a time."""

    def __init__(
        self,
        store: Callable[[sa.Connection], BlockStore],
        *,
        before: Callable[[sa.Connection], None] | None = None,
        restore_window: timedelta = RESTORE_WINDOW,
        history: timedelta = HISTORY,
        rows_per_statement: int = ROWS_PER_STATEMENT,
    ) -> None:
        """Work on the store that `store` opens again for each call, after `before`.

        A file stays for `restore_window` after it was sealed, even if its rows are gone.
        Finished batches, events and ended processes are deleted after `history`.
        """
        self._open_store = store
        self._before = before
        self._store: BlockStore | None = None
        self._history = history
        self._restore_window = restore_window
        self._rows = rows_per_statement
        # By receiver: the last segment that could not be deleted; the next call continues after it.
        self._tried: dict[int, int] = {}

    def cleanup_old_batches(
        self, connection: sa.Connection, threshold: datetime, *, term: int | None = None
    ) -> CleanupReport:
        """Delete what is older than `threshold` and what no pipeline, window, replay or kept batch can need.

        With `term`, only while it is the leader's term. Raises DeposedError.
        """
        # A store may have been attached since the last call.
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
            log.warning("blocks were deleted unread: their stream's retention is over", records=unread)
        if blocks or segments:
            log.info("cleaned up", blocks=blocks, records=records, segments=segments)
        return CleanupReport(blocks, records, unread, links, keys, segments, more, history)

    def _forget(self, connection: sa.Connection, term: int | None) -> tuple[int, bool]:
        """Delete rows older than the history; return how many, and whether there are more."""
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
                # A replica may be unavailable. The row stays, so the file is tried again later; the next call continues
                # after it, because a segment that can't be deleted must not block the others.
                self._tried[receiver_id] = segment.segment_id
                log.warning("a segment could not be deleted yet", path=segment.path, error=str(error))
                if time.monotonic() > give_up_at:
                    break
            else:
                forget_segment(connection, segment_id=segment.segment_id, term=term)
                deleted += 1
        return deleted
