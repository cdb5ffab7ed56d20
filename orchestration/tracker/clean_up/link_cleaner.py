"""Clean up source positions and idempotency keys, in a thread of their own so that they never delay blocks and files.

Each row of a busy source or of a keyed sender becomes a row to delete, up to thousands per second: this goes on until
nothing is left to take, one bounded statement at a time. The driver log decides what may be deleted
(``functions/clean_up/clean_up_offsets.sql``, ``functions/clean_up/clean_up_keys.sql``). A call asks about the streams
that a look returned, and about a part of all others in turn (`full_scan`). This module never touches blocks, segments
or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from orchestration.tracker.clean_up.full_scan import FULL_SCAN_ROUNDS, FullScan
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tracker_store.retention.cleanup import clean_up_keys, clean_up_offsets, streams_to_clean_up

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

# Most rows per statement, which is a transaction: it takes some tens of milliseconds.
ROWS_PER_STATEMENT = 5_000
# Most streams that one statement looks at for what there is to take.
STREAMS_PER_SCAN = 100
# Deduplication window of a stream whose declaration is older than the setting for it: the setting's default.
KEY_WINDOW = timedelta(seconds=ReceiverSettings().key_window)


@dataclass(frozen=True, slots=True)
class LinksReport:
    """Counts of what one call deleted."""

    links: int = 0
    keys: int = 0


class LinkCleaner:
    """Clean-up of one driver log's links and keys. For one thread at a time."""

    def __init__(
        self, *, rows_per_statement: int = ROWS_PER_STATEMENT, full_scan_rounds: int = FULL_SCAN_ROUNDS
    ) -> None:
        """Delete at most `rows_per_statement` links or keys in one transaction.

        Each stream is asked about at least once in `full_scan_rounds` calls.
        """
        self._rows = rows_per_statement
        self._full_scan = FullScan(full_scan_rounds)

    def clean_up(
        self, connection: sa.Connection, *, term: int | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> LinksReport:
        """Delete every link whose block is gone, and every key that has expired, until done or `stopped()`.

        The streams take turns, so that one with a backlog does not hold up the others. With `term`, only while it is
        the leader's term. Raises DeposedError.
        """
        links = keys = 0
        waiting = self._look(connection)
        while waiting:
            busy: list[int] = []
            for stream_id in waiting:
                if stopped():
                    return LinksReport(links, keys)
                gone = clean_up_offsets(connection, stream_id=stream_id, max_rows=self._rows, term=term)
                expired = clean_up_keys(
                    connection, stream_id=stream_id, window=KEY_WINDOW, max_rows=self._rows, term=term
                )
                links += gone
                keys += expired
                if max(gone, expired) >= self._rows:
                    busy.append(stream_id)
            waiting = busy
        self._full_scan.done()
        return LinksReport(links, keys)

    def _look(self, connection: sa.Connection) -> list[int]:
        """Return the streams that may have links or keys to delete."""
        streams: list[int] = []
        after: int | None = 0
        while after is not None:
            found = streams_to_clean_up(
                connection, window=KEY_WINDOW, max_streams=STREAMS_PER_SCAN, part=self._full_scan.part(), after_id=after
            )
            streams += found.stream_ids
            after = found.last_id
        return streams
