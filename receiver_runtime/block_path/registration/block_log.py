"""Make the registrar's calls on the driver log: additions on a connection of their own, and heartbeats.

An addition's connection is opened again after any failure. A new connection may lead to another server, so the first
blocks' segments are looked for on it: `add_block` refuses a block whose segment's row is missing, and this finds all
receivers whose rows are at once. It also finds the row of another epoch's segment under the same id, which a salvage
may use and a block's own process may not. Decides nothing about another attempt.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tracker_store.blocks.blocks import AddResult, ControlResponse, NewBlock, add_blocks
from tracker_store.blocks.segments import receivers_of_lost_segments
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import LostCommitsError
from tracker_store.receivers.processes import heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sqlalchemy as sa

    from receiver_runtime.reporting.lag_reports import LagReports


class BlockLog:
    """Call the driver log for the registrar's two threads: each has a method of its own."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        process_id: int,
        queued: Callable[[], Mapping[int, int]] = dict,
        fetched: Callable[[], Mapping[int, int]] = dict,
        lag_reports: LagReports | None = None,
    ) -> None:
        """Prepare. Each heartbeat calls `queued` for the blocks in the receivers' queues, by id; it must not wait.

        `fetched` does the same for the records that receivers' clients hold, where they say so.
        `lag_reports` are written after each heartbeat.
        """
        self._engine = engine
        self._process_id = process_id
        self._queued = queued
        self._fetched = fetched
        self._lag_reports = lag_reports
        # The connection for additions, and what gives it back.
        self._connection: sa.Connection | None = None
        self._lease = ExitStack()

    def add_blocks(self, blocks: Sequence[NewBlock]) -> list[AddResult]:
        """Add the blocks of any number of receivers by one call; see ``tracker_store.blocks.blocks.add_blocks``.

        Raises LostCommitsError, and adds nothing, if segments of some receivers are not known any more.
        """
        try:
            if self._connection is None:
                self._connection = self._lease.enter_context(connect(self._engine))
                _require_segments(self._connection, blocks)
            return add_blocks(self._connection, blocks)
        except Exception:
            # After a refusal the connection is still good, but that is not worth a special case.
            if self._connection is not None:
                self._connection.invalidate()
            self.close()
            raise

    def heartbeat(self, receiver_ids: Sequence[int]) -> list[ControlResponse]:
        """Raise the process's counter; return what its receivers are to do."""
        with connect(self._engine) as connection:
            responses = heartbeat(
                connection,
                process_id=self._process_id,
                receiver_ids=receiver_ids,
                queued=self._queued(),
                fetched=self._fetched(),
            )
            if self._lag_reports is not None:
                self._lag_reports.write(connection, self._process_id)
            return responses

    def close(self) -> None:
        """Give the connection back."""
        self._connection = None
        self._lease.close()


def _require_segments(connection: sa.Connection, blocks: Sequence[NewBlock]) -> None:
    lost = receivers_of_lost_segments(
        connection, {(block.handle.segment_id, block.receiver_id, block.epoch) for block in blocks}
    )
    if lost:
        raise LostCommitsError("the driver log has no row of a segment that it had given one", lost)
