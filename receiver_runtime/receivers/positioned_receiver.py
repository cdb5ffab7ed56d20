"""Define ``PositionedReceiver``: what users extend to receive exactly once from a source that can be read again.

Users write what reads (``fetch`` or ``read``) and what a position means. This class checks what they hand over, and
leaves threads, blocks and positions to its runs (``positioned_run``). It must never store a record without a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.block_path.records import many_of, to_batches
from receiver_runtime.receivers.position_buffer import PositionError, checked_position
from receiver_runtime.receivers.positioned_run import PositionedRun
from receiver_runtime.receivers.run_receiver import RunReceiver
from receiver_runtime.sources.source import SourceRule
from receiver_runtime.supervisor.receiver import NOT_ATTACHED
from tracker_store.connection.errors import EmptyBlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Fetched:
    """Hold what one ``fetch`` has found: records, none or many, and the position from which to read on.

    ``records`` may be all that ``Receiver.store`` takes as many: a ``RecordBatch``, a ``Table`` or a list.
    """

    records: pa.RecordBatch | pa.Table | Sequence[object]
    position: int


class PositionedReceiver(RunReceiver):
    """Receive exactly once from a source that can be read again from a position.

    A position is a whole number (0 to 2**63 - 1) that grows as the source is read: an offset, the newest id, a log
    sequence number, microseconds. The driver log registers it in the transaction that registers the records before it.
    After a restart, a crash or a move to another host, reading begins at the registered position.

    A subclass declares ``schema`` or ``columns``, and writes one of two methods:

    - ``fetch`` for a source that is asked: it returns what comes after a position. This class calls it again and again.
    - ``read`` for all other sources: it runs until ``wait`` returns True, and calls ``store_buffered`` or ``store``.

    Both run on one thread of this class, and ``on_registered`` on another one. An exception in ``fetch``, ``read`` or
    ``start_position`` restarts the receiver after a pause that grows, from the registered position.
    """

    #: Leave it as it is: blocks that were stored and not registered are read again.
    source_rule: SourceRule | None = SourceRule.OFFSETS
    #: Set it to True if the position counts something that only one host has, such as a local file.
    is_bound_to_host: bool | None = False
    #: The name under which the stream keeps the position. Set another name when the stream reads from another source,
    #: and in ``__init__`` if each receiver of the stream reads a part of it. One receiver reads a partition.
    partition: str = "all"
    #: Seconds between two calls of ``fetch`` when the first one found nothing new.
    poll_interval: float = 1.0

    _positioned_run: PositionedRun | None = None

    def __init_subclass__(cls) -> None:
        """Refuse a class that would read nothing, or could store a record twice. Raises TypeError."""
        super().__init_subclass__()
        if cls.fetch is PositionedReceiver.fetch and cls.read is PositionedReceiver.read:
            raise TypeError(f"{cls.__name__} reads nothing: write fetch(self, position), or read(self, position)")
        _check_rule(cls.__name__, cls.source_rule)

    # -- what users write --------------------------------------------------------------------------------------------

    def fetch(self, position: int) -> Fetched | None:
        """Return what comes after a position, or None if there is nothing new yet.

        The records are wholly in one block, so return less than ``max_block_bytes`` at once. Give each request a
        timeout below ``receiver_stop_timeout``, because a stop waits for this method.
        """
        raise NotImplementedError

    def read(self, position: int) -> None:
        """Read from a position until ``wait`` returns True. Calls ``fetch``, unless it is overridden."""
        reported = False
        while not self.wait(0):
            fetched = self.fetch(position)
            if not reported:
                reported = True
                self.report_connected(f"{type(self).__name__}, from position {position}")
            before = position
            if fetched is not None:
                if not isinstance(fetched, Fetched):
                    raise TypeError(
                        f"fetch returned {fetched!r:.100}: return Fetched(records, position), or None if nothing is new"
                    )
                self.store_buffered(fetched.records, fetched.position)
                position = checked_position(fetched.position)
            if position == before:
                self.wait(self.poll_interval)

    def start_position(self) -> int:
        """Return where to begin, in a partition that the stream has never read."""
        return 0

    def on_registered(self, position: int) -> None:
        """Note that everything before a position is durable and registered, for example to acknowledge it.

        Called before ``read`` at each start, with the position from which reading goes on. Then called after each
        block, in order, on another thread than that of ``read``: one call at a time, and the next block waits for it.
        It may get the same position again.
        """

    # -- what users call ---------------------------------------------------------------------------------------------

    def store(self, data: object, position: int | None = None) -> None:
        """Store many records as one block, with the position behind them; return when both are registered.

        One record, which is anything but a ``RecordBatch``, ``Table``, ``list`` or iterator, goes into the buffer as by
        ``store_buffered``.

        Raises:
            PositionError: there is no position, or it does not continue the one before.
            EmptyBlockError: many records, and there are none.
            RecordTypeError: a record does not fit the schema.
            DriverLogError: the block was refused. It is not registered; let ``read`` end by this error.
        """
        checked = self._check("store", position)
        many = many_of(data, self.record_schema)
        if many is None:
            self._positioned().buffer.add(to_batches([data], self.record_schema), checked)
            return
        batches = to_batches(many, self.record_schema)
        if not batches:
            raise EmptyBlockError(
                f"{type(self).__name__} stored many records as one block, at position {checked}, and there were 0 "
                "(store_buffered([], position) moves the position alone)"
            )
        self._positioned().buffer.add_block(batches, checked)

    def store_buffered(
        self, records: pa.RecordBatch | pa.Table | Sequence[object], position: int | None = None
    ) -> None:
        """Put records into the buffer, with the position behind them; wait while it is full, or a rate limit holds it.

        A block is cut at each ``block_interval``, and no call's records are divided. ``on_registered`` says when they
        are durable. Without records, the position is registered with the next ones that come.

        Raises:
            PositionError: there is no position, or it does not continue the one before.
            RecordTypeError: a record does not fit the schema.
            GeneratorStateError: ``read`` has returned, or was not called yet.
        """
        checked = self._check("store_buffered", position)
        many = many_of(records, self.record_schema)
        self._positioned().buffer.add(to_batches(records if many is None else many, self.record_schema), checked)

    def wait(self, seconds: float) -> bool:
        """Wait; return True, at once, when ``read`` is to return."""
        return self._positioned().buffer.wait(seconds)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def make_run(self) -> PositionedRun:
        """Return a run for one start. Raises TypeError for a partition that is no name, or for another source rule."""
        _check_rule(type(self).__name__, self.source_rule)
        if not isinstance(self.partition, str) or not self.partition:
            raise TypeError(f"partition = {self.partition!r} of {type(self).__name__}: give a text that is not empty")
        self._positioned_run = PositionedRun(
            self,
            partition=self.partition,
            start_position=self.start_position,
            read=self.read,
            on_registered=self.on_registered,
        )
        return self._positioned_run

    def _positioned(self) -> PositionedRun:
        if self._positioned_run is None:
            raise RuntimeError(NOT_ATTACHED)
        return self._positioned_run

    def _check(self, method: str, position: int | None) -> int:
        if position is None:
            raise PositionError(f"{method} of {type(self).__name__} got no position: {method}(records, position)")
        return checked_position(position)


def _check_rule(name: str, rule: SourceRule | None) -> None:
    """Raise TypeError for a rule by which salvage would register what is read again."""
    if rule is not SourceRule.OFFSETS:
        raise TypeError(f"{name} has source_rule = {rule}: leave it out, positions say what is read again")
