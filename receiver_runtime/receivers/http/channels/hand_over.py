"""Hand over records of channels: each channel's position moves in the transaction that registers their block.

A receiver submits requests, and is told the outcome of each when its records are registered, and the position with
them. So any receiver knows a request that comes again, after any crash, from one row for each channel.

What is decided where:

- **Where a channel is** is decided by the driver log: a block goes in only if each of its channels is exactly where the
  block's part of it begins. This object takes requests behind that position while their blocks are in flight, so that a
  sender may have several under way.
- **A request ahead of its turn** is refused at once with the position (``ChannelPositionError``). If nothing of its
  channel is in flight here, the driver log is asked first: another receiver may have moved the channel.
- **A refused block** (``ChannelConflictError``) says that another receiver has moved one of its channels. All blocks of
  channels that are in flight are refused with it. The driver log is asked for the positions of all their channels;
  requests that do not go on from there are refused, or were registered by that receiver; the others are stored again.
- **A request that comes again** while its first copy is in flight waits for that copy.
- **Records that become dead letters** count in the channel as all others do. If a block has no other records, the
  channels are moved without it, once all blocks before are registered. A dead letter is stored before its channel
  moves; a process that dies in between leaves it to be stored again.

One thread works while there is anything to do, and ends with the work. It calls ``on_answers``, which must return soon.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.text_check import CheckedRows
from receiver_runtime.receivers.http.channels.ledger import ChannelLedger, Turn
from receiver_runtime.receivers.http.channels.parts import (
    ChannelBlock,
    ChannelOutcome,
    ChannelPositionError,
)
from receiver_runtime.receivers.keyed_hand_over import HandOverClosedError
from tracker_store.blocks.channels import ChannelKey
from tracker_store.connection.errors import ChannelConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from receiver_runtime.block_path.block_path import BlockPath
    from receiver_runtime.receivers.http.channels.parts import ChannelPart, ChannelRequest
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor

    #: A request, and what was done with it, or why it is refused.
    Answer = tuple[ChannelRequest, ChannelOutcome | ChannelPositionError]

_log = structlog.get_logger(__name__)

# As in ``keyed_hand_over``: blocks in flight, seconds between two blocks, and with how many requests one goes at once.
_BLOCKS_UNDER_WAY = 4
_GATHERING_SECONDS = 0.02
_MANY_REQUESTS = 50


class ChannelHandOver:
    """Hand over requests of channels; see the module.

    Any thread may submit. Call ``close`` in the receiver's ``on_stop``, and make a new one at each start.

    Args:
        supervisor: the receiver's.
        on_answers: called on the thread with requests that are done, or refused for their position.
        on_failed: called on the thread, once, with what has ended the hand-over, and the requests without an answer.
    """

    def __init__(
        self,
        supervisor: AttachedSupervisor,
        *,
        on_answers: Callable[[Sequence[Answer]], None],
        on_failed: Callable[[BaseException, Sequence[ChannelRequest]], None],
    ) -> None:
        self._path = supervisor.block_path
        self._on_failed = on_failed
        settings = supervisor.settings
        self._under_way_at_most = min(_BLOCKS_UNDER_WAY, settings.block_queue_size)
        self._gathering = min(_GATHERING_SECONDS, settings.block_interval)
        # Guards the requests that were not looked at yet, and how it ends.
        self._changed = threading.Condition()
        self._new: list[ChannelRequest] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failed: BaseException | None = None
        # Only the thread uses these; the next thread finds them as the last one left them.
        self._requests = _RequestsInOrder(self._path, on_answers, largest_block=settings.max_block_bytes)
        self._blocks = _BlocksInFlight(self._path, self._requests, self._wake)
        self._not_before = 0.0

    def submit(self, requests: Sequence[ChannelRequest]) -> None:
        """Take requests, in order. The caller limits how many there are.

        Raises:
            HandOverClosedError: after ``close``.
            Exception: what has ended the hand-over, as a fenced receiver.
        """
        with self._changed:
            if self._failed is not None:
                raise self._failed
            if self._closed:
                raise HandOverClosedError(HandOverClosedError.__doc__)
            self._new += requests
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="channel hand-over", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing more; return when everything that was submitted is answered. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._thread is not None:
                self._changed.wait()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001  whatever it is, the requests get it
            self._fail(error)

    def _step(self) -> bool:
        """Do what is next, or wait for it; return False when there is no work left and the thread ends."""
        if self._blocks.collect() or self._blocks.store():
            self._blocks.recover()
        elif new := self._take_new():
            self._requests.admit(new)
        elif self._seconds_until_next() == 0:
            self._not_before = time.monotonic() + self._gathering
            self._blocks.begin()
        else:
            return self._wait()
        return True

    def _take_new(self) -> Sequence[ChannelRequest]:
        with self._changed:
            new, self._new = self._new, []
        return new

    def _seconds_until_next(self) -> float | None:
        """Return the seconds until the next block is due; None if there is nothing, or no room, for one."""
        requests = self._requests
        if not requests.ready or len(self._blocks) >= self._under_way_at_most:
            return None
        if self._closed or requests.fills_a_block or len(requests.ready) >= max(_MANY_REQUESTS, self._blocks.requests):
            return 0
        return max(0.0, self._not_before - time.monotonic())

    def _wait(self) -> bool:
        seconds = self._seconds_until_next()
        with self._changed:
            if self._new or self._blocks.is_first_settled:
                return True
            if not len(self._blocks) and not self._requests.ready:
                self._thread = None
                self._changed.notify_all()
                return False
            if seconds != 0:
                with self._path.in_flight:
                    self._changed.wait(seconds)
        return True

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Take nothing more, and fail the requests that are not answered."""
        with self._changed:
            self._failed = error
            new, self._new = self._new, []
        # Some may have their outcomes already, if an error came before these were passed on.
        self._requests.send_answers()
        self._blocks.give_up()
        self._on_failed(error, [*self._requests.unanswered(), *new])
        with self._changed:
            self._thread = None
            self._changed.notify_all()
        # Last: a log line that can't be written must not keep a thread waiting.
        _log.warning("records of channels that were handed over are not registered by this process", error=str(error))


class _RequestsInOrder:
    """Hold what was taken of each channel, in order, until it is registered. Only the hand-over's thread uses it."""

    def __init__(self, path: BlockPath, on_answers: Callable[[Sequence[Answer]], None], *, largest_block: int) -> None:
        self._path = path
        self._on_answers = on_answers
        self._largest_block = largest_block
        self._ledger = ChannelLedger()
        #: Parts that are in no block yet.
        self.ready: deque[ChannelPart] = deque()
        self._ready_bytes = 0
        # Parts whose offsets are those of others in flight, by channel.
        self._waiting: dict[ChannelKey, list[ChannelPart]] = {}
        self._unanswered: dict[ChannelRequest, None] = {}
        self._answers: list[Answer] = []

    @property
    def fills_a_block(self) -> bool:
        """Return whether what is ready makes a block of the largest size."""
        return self._ready_bytes >= self._largest_block

    def unanswered(self) -> Sequence[ChannelRequest]:
        """Return the requests that wait for their answers."""
        return list(self._unanswered)

    def admit(self, requests: Sequence[ChannelRequest]) -> None:
        """Take requests that are next in their channels, and answer those that are stored, or ahead of their turn."""
        self._unanswered.update(dict.fromkeys(requests))
        self._ask(self._ledger.unknown(request.channel for request in requests))
        # Another receiver may have moved a channel: requests of one that seems to be elsewhere wait until it was asked.
        deferred: dict[ChannelKey, list[ChannelPart]] = {}
        for request in requests:
            part = request.part()
            if (others := deferred.get(request.channel)) is not None:
                others.append(part)
            elif not self._place(part, may_defer=True):
                deferred[request.channel] = [part]
        self._ask(deferred)
        for parts in deferred.values():
            for part in parts:
                self._place(part)
        self._ledger.forget_idle()
        self.send_answers()

    def place_again(self, parts: Sequence[ChannelPart]) -> None:
        """Place parts of refused blocks, and all that is ready, by the positions that the driver log has now."""
        again = [*parts, *self.ready]
        self.ready.clear()
        self._ready_bytes = 0
        channels = dict.fromkeys(part.request.channel for part in again)
        waiting = [part for channel in channels for part in self._waiting.pop(channel, ())]
        self._ask(channels)
        for part in (*again, *waiting):
            if not part.request.is_answered:
                self._place(part)
        self.send_answers()

    def next_parts(self) -> list[ChannelPart]:
        """Return the parts of the next block, at least one: as many rows and bytes as it may have."""
        rows_left = sum(part.rows.count for part in self.ready)
        most = self._path.piece(rows_left, self._ready_bytes) if rows_left else 0
        bytes_left = self._largest_block
        parts: list[ChannelPart] = []
        while self.ready:
            part = self.ready[0]
            if part.rows.count <= most and part.nbytes <= bytes_left:
                self.ready.popleft()
            elif not part.can_be_cut:
                if parts:
                    break
                self.ready.popleft()
            else:
                rows = part.rows.count
                fitting = min(most, rows * max(0, bytes_left) // max(1, part.nbytes), rows - 1)
                if fitting <= 0 and parts:
                    break
                if rows > 1:
                    part = part.cut(max(1, fitting))
                    self._ledger.divide(part.request.channel)
                else:
                    self.ready.popleft()
            parts.append(part)
            most -= part.rows.count
            bytes_left -= part.nbytes
        self._ready_bytes = sum(part.nbytes for part in self.ready)
        return parts

    def settle(self, block: ChannelBlock) -> None:
        """Answer what is registered with a block."""
        for part in block.parts:
            part.request.added += part.rows.count
            self._end_part(part)
        for move in block.moves:
            channel = ChannelKey(move.sender, move.channel)
            for part in self._waiting.pop(channel, ()):
                if part.end <= move.to_offset:
                    part.request.duplicates += part.countable
                    self._end_part(part)
                else:
                    self._waiting.setdefault(channel, []).append(part)
        self.send_answers()

    def _ask(self, channels: Iterable[ChannelKey]) -> None:
        if asked := list(channels):
            for channel, position in zip(asked, self._path.channel_positions(asked), strict=True):
                self._ledger.know(channel, position)

    def _place(self, part: ChannelPart, *, may_defer: bool = False) -> bool:
        """Take, answer or refuse a part; return False if the driver log is to be asked first."""
        request, ledger = part.request, self._ledger
        turn = ledger.turn(request.channel, part.begin, part.end)
        if turn is Turn.AHEAD:
            if may_defer and ledger.is_idle(request.channel):
                return False
            position = ledger.registered(request.channel)
            self._answer(request, ChannelPositionError(position, f"the request begins at {part.begin}"))
        elif turn is Turn.STORED:
            request.duplicates += part.countable
            self._end_part(part, is_taken=False)
        elif turn is Turn.TAKEN:
            ledger.take(request.channel, part.end)
            self._waiting.setdefault(request.channel, []).append(part)
        elif (taken := ledger.taken(request.channel)) > part.begin and not part.can_be_cut:
            why = "some of the request's records are stored, and its dead letters have no offsets"
            self._answer(request, ChannelPositionError(ledger.registered(request.channel), why))
        else:
            if taken > part.begin:
                part.drop_before(taken)
            ledger.take(request.channel, part.end)
            self.ready.append(part)
            self._ready_bytes += part.nbytes
        return True

    def _end_part(self, part: ChannelPart, *, is_taken: bool = True) -> None:
        request = part.request
        if is_taken:
            self._ledger.settle(request.channel, part.end)
        request.parts_left -= 1
        if not request.parts_left:
            position = max(request.end, self._ledger.registered(request.channel))
            self._answer(request, ChannelOutcome(request.added, request.duplicates, request.misfits, position))

    def _answer(self, request: ChannelRequest, outcome: ChannelOutcome | ChannelPositionError) -> None:
        if not request.is_answered:
            request.is_answered = True
            del self._unanswered[request]
            self._answers.append((request, outcome))

    def send_answers(self) -> None:
        """Pass on the outcomes that are known."""
        answers, self._answers = self._answers, []
        if answers:
            self._on_answers(answers)


class _BlocksInFlight:
    """Hold the blocks that are not answered, in order. Only the hand-over's thread uses it."""

    def __init__(self, path: BlockPath, requests: _RequestsInOrder, on_answered: Callable[[object], None]) -> None:
        self._path = path
        self._requests = requests
        self._on_answered = on_answered
        self._blocks: deque[ChannelBlock] = deque()
        # Whether the registrar has refused a block, and takes none until it is told.
        self._is_refused = False

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._blocks)

    @property
    def requests(self) -> int:
        """Return how many parts of requests they have."""
        return sum(len(block.parts) for block in self._blocks)

    @property
    def is_first_settled(self) -> bool:
        """Return whether the first one can be answered, or was refused."""
        return bool(self._blocks) and self._blocks[0].is_settled

    def begin(self) -> None:
        """Make a block of what is ready; ``store`` stores it."""
        block = ChannelBlock(self._requests.next_parts())
        self._blocks.append(block)
        if rows := sum(part.rows.count for part in block.parts):
            self._path.wait_for_rate(rows, sum(part.nbytes for part in block.parts))

    def collect(self) -> bool:
        """Answer what is registered, in order; return whether a block was refused for a channel."""
        while self.is_first_settled:
            future = self._blocks[0].future
            error = None if future is None else future.exception()
            if isinstance(error, ChannelConflictError):
                self._is_refused = True
                return True
            if error is not None:
                raise error
            self._requests.settle(self._blocks.popleft())
        return False

    def store(self) -> bool:
        """Store the blocks that are due, in order; return whether one was refused."""
        for block in list(self._blocks):
            if block.future is not None:
                continue
            rows = self._checked(block)
            if not rows.num_rows:
                if block is not self._blocks[0]:
                    # Its channels move when all blocks before it are registered.
                    return False
                if not self._path.move_channels(block.moves):
                    return True
                self._requests.settle(self._blocks.popleft())
                continue
            try:
                block.future = self._path.push_channels(rows, block.moves)
            except ChannelConflictError:
                self._is_refused = True
                return True
            block.checked = None
            block.future.add_done_callback(self._on_answered)
        return False

    def _checked(self, block: ChannelBlock) -> pa.RecordBatch:
        """Return a block's rows as it has them; its dead letters are stored."""
        if block.checked is not None:
            return block.checked
        rows = block.joined()
        checked = CheckedRows(rows)
        if rows.num_rows:
            checked = self._path.until_read(partial(self._path.rows.check, rows))
        if letters := block.take_checked(checked):
            self._path.store_dead_letters(letters)
        return checked.batch

    def recover(self) -> None:
        """Ask the driver log where the channels are, after a refusal, and have what goes on from there stored again."""
        with self._path.in_flight:
            wait([block.future for block in self._blocks if block.future is not None])
        # Blocks before the refused one may have been registered meanwhile.
        self.collect()
        if self._is_refused:
            self._path.writer.resume_after_refusal()
            self._is_refused = False
        parts = [part for block in self._blocks for part in block.parts]
        self._blocks.clear()
        self._requests.place_again(parts)

    def give_up(self) -> None:
        """Wait for the blocks in flight, and let others go on if one of these was refused for a channel."""
        futures = [block.future for block in self._blocks if block.future is not None]
        self._blocks.clear()
        with self._path.in_flight:
            wait(futures)
        if self._is_refused or any(isinstance(future.exception(), ChannelConflictError) for future in futures):
            # Other blocks wait until this is called.
            with suppress(Exception):
                self._path.writer.resume_after_refusal()
