"""Store encoded blocks of one epoch in the order of their sequences, and hand each to the registrar.

Owns the order of sequences, the blocks in flight to the registrar, and whether the driver log has refused the epoch. It
must never store a block after that refusal, and never restart a receiver: it reports the refusal.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from receiver_runtime.block_path.registration.receiver_queue import OF_ONE_HAND_OVER
from receiver_runtime.block_store.frames.frame import SourceRule
from receiver_runtime.reporting.acknowledged_blocks import AcknowledgedBlocks
from receiver_runtime.watching.receiver_calls import InFlightCalls
from tracker_store.connection.errors import ChannelConflictError, DuplicateKeysError, OffsetConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from receiver_runtime.block_path.block_handler import BlockHandler, EncodedBlock
    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from tracker_store.blocks.blocks import BlockHandle, ChannelMove, ControlResponse, NewBlock, OffsetLink
    from tracker_store.connection.errors import DriverLogError


class BlockWriter:
    """Write one receiver's blocks; see the module. Any thread.

    The push lock orders the blocks: under it a block gets its sequence, is stored, and goes to the registrar. The other
    lock guards the refusal. No callback runs under either of them.

    Args:
        on_refused: called when the driver log accepts nothing more of this epoch, before any thread can see that; maybe
            again for the same refusal. It must return at once.
    """

    def __init__(
        self, context: ReceiverContext, handler: BlockHandler, *, on_refused: Callable[[BaseException], None]
    ) -> None:
        self._context = context
        self._handler = handler
        self._on_refused = on_refused
        self._progress = context.progress
        self._clock = context.clock
        #: For operators, in case the driver log turns out to have lost some of them.
        self.acknowledged = AcknowledgedBlocks()
        #: Counts the threads that are storing something or wait for their turn to.
        self.storing = InFlightCalls(context.clock)

        self._push_lock = threading.Lock()
        self._next_sequence = context.claim.sequence + 1
        # The error of which the owner of the blocks in flight, if any, leaves records out and goes on; None: of none.
        self._passing: type[DriverLogError] | None = None

        # Guards everything below.
        self._changed = threading.Condition()
        self.is_refused = False
        # Blocks that were stored and then refused. The next epoch's salvage finds those stored before it looked.
        self._refused_blocks = 0
        self._refused_records = 0

    def attach(self, *, drop_buffer: Callable[[], None], on_response: Callable[[ControlResponse], None]) -> None:
        """Attach to the registrar, once, before the first block.

        Args:
            drop_buffer: called after a refusal, to drop what is not stored.
            on_response: called with what the receiver is to do, possibly before this returns.
        """
        self._drop_buffer = drop_buffer
        self._registration = self._context.registrar.attach(
            self._context.receiver_id,
            registered_through=self._handler.registered_through,
            limit=self._context.settings.block_queue_size,
            on_response=on_response,
            status=self._context.status,
            progress=self._progress,
            on_lost=self.refuse,
        )

    @property
    def holds_data(self) -> bool:
        """Return whether something is being stored, or waits to be registered. Takes no lock."""
        return self._registration.has_unsettled or self.storing.any_since(math.inf)

    @property
    def newest_sequence(self) -> int:
        """Return the newest block's sequence. Takes no lock."""
        return self._next_sequence - 1

    @property
    def registered_through(self) -> int:
        """Return the newest sequence that is known to be registered."""
        return self._registration.registered_through

    @property
    def refused(self) -> tuple[int, int]:
        """Return how many blocks, and how many records in them, were stored and then refused."""
        with self._changed:
            return self._refused_blocks, self._refused_records

    def push(
        self,
        encoded: EncodedBlock,
        links: tuple[OffsetLink, ...] = (),
        keys: tuple[str, ...] | None = None,
        moves: tuple[ChannelMove, ...] = (),
    ) -> Future[NewBlock]:
        """Store a block and hand it to the registrar; its future resolves when the driver log has it.

        Raises: whatever stopped it. Then nothing of it is stored, or it is not registered.
        """
        passing = ChannelConflictError if moves else None if keys is None else DuplicateKeysError
        with self.storing:
            while True:
                try:
                    return self._push_once(encoded, links, keys, moves, passing)
                except OF_ONE_HAND_OVER as error:
                    if passing is not None and isinstance(error, passing):
                        raise
                # The blocks in flight are another thread's. That thread calls ``resume_after_refusal`` at once.
                self._registration.wait_until_resumed()

    def _push_once(
        self,
        encoded: EncodedBlock,
        links: tuple[OffsetLink, ...],
        keys: tuple[str, ...] | None,
        moves: tuple[ChannelMove, ...],
        passing: type[DriverLogError] | None,
    ) -> Future[NewBlock]:
        with self._push_lock:
            if self._passing is not passing:
                # Blocks with keys, blocks with moves of channels and blocks without are never in flight together: a
                # refusal for a key would refuse the others too, and their sender may not send them again.
                self._registration.wait_until_settled()
                self._passing = passing
            self._registration.reserve()
            try:
                block = self._handler.store_block(
                    encoded,
                    sequence=self._next_sequence,
                    source_rule=None if passing is None else SourceRule.SENT_AGAIN,
                    moves=moves,
                )
            except BaseException:
                self._registration.release()
                raise
            self._progress.made()
            self._next_sequence += 1
            if links or keys or moves:
                block = replace(block, links=links, keys=keys or (), moves=moves)
            future = self._registration.submit(block)
        future.add_done_callback(partial(self._on_answer, block))
        return future

    def note_moves(self, moves: Sequence[ChannelMove]) -> Sequence[BlockHandle]:
        """Store a note of moves without a block, in its place between the blocks; as ``BlockHandler.note_moves``."""
        with self.storing, self._push_lock:
            return self._handler.note_moves(moves, sequence=self._next_sequence)

    def resume_after_refusal(self) -> None:
        """Accept blocks again, after a refusal for a position, a key or a channel. Waits for the blocks in flight.

        The refused blocks are dropped here; their caller may hand them over again.

        Raises: the error with which the receiver was refused for good.
        """
        with self._push_lock:
            self._next_sequence = self._registration.resume() + 1
        self._progress.made()

    def lift_limit(self) -> None:
        """Make room for any number of blocks in flight, at the end."""
        self._registration.lift_limit()

    def settle(self) -> None:
        """Return when no block waits for an answer any more."""
        self._registration.wait_until_settled()

    def pause(self, seconds: float) -> bool:
        """Wait; return False as soon as nothing more is to be stored."""
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while not self.is_refused and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(self._changed, left)
            return not self.is_refused

    def refuse(self, error: BaseException) -> None:
        """Stop: nothing more of this epoch is stored or registered."""
        # First, so that a thread that sees refused blocks finds that the supervisor knows the reason.
        self._on_refused(error)
        with self._changed:
            if self.is_refused:
                return
            self.is_refused = True
            self._changed.notify_all()
        self._drop_buffer()

    def _on_answer(self, block: NewBlock, future: Future[NewBlock]) -> None:
        """Count an answer, on the registrar's thread."""
        error = future.exception()
        if error is None:
            self.acknowledged.add(block)
            return
        if (isinstance(error, OffsetConflictError) and block.links) or isinstance(error, OF_ONE_HAND_OVER):
            # The receiver drops what it has read and reads on from the driver log's positions; or it leaves out the
            # records that the driver log has.
            return
        with self._changed:
            self._refused_blocks += 1
            self._refused_records += block.records
        self.refuse(error)
