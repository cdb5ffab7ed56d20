"""Clean up: delete rows that nothing can need again, then the files that no row names (docs/parity.md, T06, W09, W11).

The driver log decides what may be deleted (``functions/clean_up/clean_up_receiver.sql``); this module only asks
repeatedly, in bounded pieces, and deletes files. It may be killed at any point: the next run finds what is left. A
round costs what there is to take: it asks about the receivers and pipelines that a look returned, and about a part of
all others in turn (`full_scan`). Links and keys are `link_cleaner`'s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from orchestration.state.state_folder import delete_folder
from orchestration.tracker.clean_up.full_scan import FULL_SCAN_ROUNDS, FullScan
from receiver_runtime.block_store.frames.errors import BlockStoreError
from tracker_store.retention.cleanup import (
    clean_up_receiver,
    forget_segment,
    receivers_to_clean_up,
    segments_to_delete,
)
from tracker_store.retention.history import clean_up_events, clean_up_history, forget_receivers, pipelines_with_history
from tracker_store.retention.state_files import forget_state_version, state_versions_to_delete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    import sqlalchemy as sa

    from receiver_runtime.block_store.stores.interface import BlockStore

# Most rows per statement: it takes some tens of milliseconds.
ROWS_PER_STATEMENT = 5_000
# Most statements per receiver in one call, and segments per receiver: no receiver delays the others for long. The rest
# waits for the next call.
STATEMENTS_PER_CALL = 20
SEGMENTS_PER_CALL = 200
# Most versions of outputs' states whose files one call deletes.
STATES_PER_CALL = 200
# Most receivers that one statement looks at for what there is to take, which is some tens of milliseconds.
RECEIVERS_PER_LOOK = 1_000
# Most removed receivers that one statement looks at, and seconds between looks at all of them.
RECEIVERS_PER_STATEMENT = 100
FORGET_SECONDS = 600.0
# How long a sealed file stays at least: a database restored from a backup of the last hour still finds its files.
RESTORE_WINDOW = timedelta(hours=1)
# How long, in seconds per receiver, an unavailable store may delay a call.
FAILING_SECONDS = 5.0
# How long finished batches, events and ended processes are kept.
HISTORY = timedelta(days=14)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """Counts of what one call deleted; `more`: there is more to do now."""

    blocks: int = 0
    records: int = 0
    segments: int = 0
    more: bool = False
    history: int = 0
    states: int = 0


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
        full_scan_rounds: int = FULL_SCAN_ROUNDS,
    ) -> None:
        """Work on the store that `store` opens again for each call, after `before`.

        A file stays for `restore_window` after it was sealed, even if its rows are gone.
        Finished batches, events and ended processes are deleted after `history`.
        Each receiver and pipeline is asked about at least once in `full_scan_rounds` calls.
        """
        self._open_store = store
        self._before = before
        self._store: BlockStore | None = None
        self._history = history
        self._restore_window = restore_window
        self._rows = rows_per_statement
        # When to look again for removed receivers, on the monotonic clock; None: at the next call.
        self._forget_at: float | None = None
        # By receiver: the last segment that could not be deleted; the next call continues after it.
        self._tried: dict[int, int] = {}
        self._full_scan = FullScan(full_scan_rounds)
        # Receivers of which a call took as many segments as it may: a look may not see those behind them.
        self._unfinished: set[int] = set()

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
        blocks = records = unread = segments = 0
        more = False
        for receiver_id, has_blocks in self._look(connection, threshold):
            for statement in range(STATEMENTS_PER_CALL if has_blocks else 0):
                cleaned = clean_up_receiver(
                    connection, receiver_id=receiver_id, threshold=threshold, max_rows=self._rows, term=term
                )
                blocks += cleaned.blocks
                records += cleaned.records
                unread += cleaned.unread_records
                if not cleaned.more:
                    break
                more |= statement == STATEMENTS_PER_CALL - 1
            segments += self._delete_segments(connection, receiver_id, term)
        states, more_states = self._delete_states(connection, term)
        history, more_history = self._forget(connection, term)
        more |= more_history or more_states
        self._full_scan.done()
        if unread:
            log.warning("blocks were deleted unread: their stream's retention is over", records=unread)
        if blocks or segments or states:
            log.info("cleaned up", blocks=blocks, records=records, segments=segments, states=states)
        return CleanupReport(blocks, records, segments, more, history, states)

    def _look(self, connection: sa.Connection, threshold: datetime) -> Iterator[tuple[int, bool]]:
        """Yield each receiver that may have something to delete, and whether it may have blocks; else only segments."""
        unfinished, self._unfinished = self._unfinished, set()
        after: int | None = 0
        while after is not None:
            found = receivers_to_clean_up(
                connection,
                threshold=threshold,
                restore_window=self._restore_window,
                max_receivers=RECEIVERS_PER_LOOK,
                max_segments=SEGMENTS_PER_CALL,
                part=self._full_scan.part(),
                after_id=after,
            )
            after = found.last_id
            of_blocks = set(found.of_blocks)
            unfinished -= of_blocks.union(found.of_segments)
            for receiver_id in sorted(of_blocks.union(found.of_segments)):
                yield receiver_id, receiver_id in of_blocks
        for receiver_id in sorted(unfinished):
            yield receiver_id, False

    def _forget(self, connection: sa.Connection, term: int | None) -> tuple[int, bool]:
        """Delete rows older than the history; return how many, and whether there are more."""
        parts = [
            clean_up_history(connection, pipeline_id=pipeline, keep=self._history, max_rows=self._rows, term=term)
            for pipeline in pipelines_with_history(connection, keep=self._history, part=self._full_scan.part())
        ]
        parts.append(clean_up_events(connection, keep=self._history, max_rows=self._rows, term=term))
        self._forget_receivers(connection, term)
        return sum(part.rows for part in parts), any(part.more for part in parts)

    def _forget_receivers(self, connection: sa.Connection, term: int | None) -> None:
        """Delete removed receivers of which nothing is left; only now and then, because each costs some probes."""
        now = time.monotonic()
        if self._forget_at is not None and now < self._forget_at:
            return
        after: int | None = 0
        forgotten = 0
        while after is not None:
            done = forget_receivers(
                connection, keep=self._history, max_rows=RECEIVERS_PER_STATEMENT, after_id=after, term=term
            )
            after, forgotten = done.last_id, forgotten + done.forgotten
        if forgotten:
            log.info("removed receivers were forgotten", receivers=forgotten)
        self._forget_at = now + FORGET_SECONDS

    def _delete_states(self, connection: sa.Connection, term: int | None) -> tuple[int, bool]:
        """Delete versions of outputs' states that nothing reads; return how many, and whether there are more."""
        found = state_versions_to_delete(
            connection, restore_window=self._restore_window, keep=self._history, limit=STATES_PER_CALL, term=term
        )
        deleted = 0
        give_up_at = time.monotonic() + FAILING_SECONDS
        for state in found:
            try:
                store = self._store = self._store or self._open_store(connection)
                delete_folder(store, state.folder)
            except (OSError, BlockStoreError) as error:
                # The row stays marked, and its turn comes after those of the others.
                log.warning("a version of a state could not be deleted yet", folder=state.folder, error=str(error))
                if time.monotonic() > give_up_at:
                    break
            else:
                forget_state_version(connection, state, term=term)
                deleted += 1
        return deleted, len(found) == STATES_PER_CALL and deleted == len(found)

    def _delete_segments(self, connection: sa.Connection, receiver_id: int, term: int | None) -> int:
        found = segments_to_delete(
            connection,
            receiver_id=receiver_id,
            restore_window=self._restore_window,
            limit=SEGMENTS_PER_CALL,
            after=self._tried.pop(receiver_id, 0),
            term=term,
        )
        if len(found) == SEGMENTS_PER_CALL:
            self._unfinished.add(receiver_id)
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
