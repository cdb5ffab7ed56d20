"""Hand over records that their sender sends again until acknowledged, and leave out those that the stream already has.

A receiver submits batches, and acknowledges the sender in the future's callback. By then the block with the records is
registered, and the records' keys with it, in one transaction. So any receiver knows a key that comes again, after any
crash, until the stream's window is over.

What is decided where:

- **Which keys are known** is decided by the driver log. A block goes in with all of its keys or not at all. A refusal
  (``DuplicateKeysError``) refuses all blocks in flight. Once they are settled, the driver log is asked which of their
  keys it has; their rows are left out and counted, and the rest is stored again, in order. Each refusal names a
  committed key, so each round has less to do.
- **Keys in flight here** are known to this object: a key that comes again before its first block is registered is left
  out at once and counted as a duplicate. Its future waits for that block: blocks are answered in order, and if one
  fails for good, all later ones fail with it.
- **A key that comes again within one submit** is left out as if it had come before; the first row counts. A sender may
  repeat itself at once, and both messages are then read together. An exception is a submit that is one request whose
  rows share a key: those rows **stay in one block**, because if only half of them were registered, the next attempt
  would leave out the other half. A block is cut between keys, even if that makes it larger than ``max_block_bytes``.
- **A key that comes again with other content**, within a submit or while the first row is in flight here, becomes a
  dead letter, if the receiver names its column of content. What is registered is known by its key alone.
- **A lost answer** decides nothing; the registrar resolves it by sending the identical blocks.
- **Rows that a block can't have** become dead letters before their block is stored, and their keys are not registered.
  A submit counts them neither as added nor as duplicates.
- If keys were found known lately (after a take-over the sender repeats much), the driver log is asked for them before
  the block is stored, because a refusal costs more than a question.
- **A key that is registered without its scope** (``unscoped_keys``: the source had no tokens then) is asked for before
  each block with such keys is stored, because no refusal would name it.

Submits that come close together share a block. Memory is bounded by the number and the bytes of unanswered submits;
``submit`` waits. One thread works while there is anything to do, and ends a second later. It calls the futures'
callbacks, in the order of the submits; they must return soon, and must not submit.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import structlog

from receiver_runtime.block_path.records import conform
from receiver_runtime.receivers.keyed_blocks import HandedOver, KeyedBlock, Requests, SubmitQueue, submit_of
from receiver_runtime.receivers.storable_keys import by_key, storable
from tracker_store.connection.errors import DuplicateKeysError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.block_path.block_path import BlockPath
    from receiver_runtime.receivers.keyed_blocks import KeyedPart, Submit
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor
    from tracker_store.blocks.blocks import NewBlock

_log = structlog.get_logger(__name__)

#: How many submits may wait for their answers, by default.
MOST_IN_FLIGHT = 1000
# The bytes of unanswered submits, in blocks of the largest size.
_MOST_BLOCKS_OF_BYTES = 4
# Blocks that may be stored and not yet registered.
_BLOCKS_UNDER_WAY = 4
# Seconds, minimum between two blocks; records that arrive in between share the next block. A full block goes at once.
# So does one that has as many messages as make a block's own cost small for each, if no more are under way: with fewer
# senders that wait for their answers, the rest of the time would only be waited.
_GATHERING_SECONDS = 0.02
_MANY_MESSAGES = 50
# Seconds for which the thread waits for work before it ends: a new one has none of the memory that this one has used.
_IDLE_SECONDS = 1.0
# For this many blocks after a known key, ask for keys before storing.
_CAREFUL_BLOCKS = 16


class HandOverClosedError(Exception):
    """Don't acknowledge the sender, which comes again: the receiver is stopping and takes nothing more."""


class KeyedHandOver:
    """Hand over records with keys; see the module.

    Any thread may submit. Call ``close`` in the receiver's ``on_stop``, and make a new one at each start.

    Args:
        supervisor: the receiver's.
        most_in_flight: how many submits may wait for their answers.
        most_bytes: how many bytes they may have; four blocks of the largest size by default.
        content: the column of text or bytes that is always the same for a key, where senders choose the keys.
    """

    def __init__(
        self,
        supervisor: AttachedSupervisor,
        *,
        most_in_flight: int = MOST_IN_FLIGHT,
        most_bytes: int | None = None,
        content: str | None = None,
    ) -> None:
        if most_in_flight < 1:
            raise ValueError(f"most_in_flight={most_in_flight}: give 1 or more")
        self._schema = supervisor.record_schema
        self._path = supervisor.block_path
        self._content = content
        settings = supervisor.settings
        self._under_way_at_most = min(_BLOCKS_UNDER_WAY, settings.block_queue_size)
        self._gathering = min(_GATHERING_SECONDS, settings.block_interval)
        # Guards the submits with rows in no block yet, what is not answered, and how it ends.
        self._changed = threading.Condition()
        self._queue = SubmitQueue(
            most_in_flight=most_in_flight,
            most_bytes=_MOST_BLOCKS_OF_BYTES * settings.max_block_bytes if most_bytes is None else most_bytes,
            largest_block=settings.max_block_bytes,
        )
        # While the thread waits until the next block is due: with how many messages it is due at once.
        self._due_with: float = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failed: BaseException | None = None
        # Only the thread uses these; the next thread finds them as the last one left them.
        self._blocks = _BlocksInFlight(self._path, content, self._wake)
        self._not_before = 0.0

    # -- the receiver's side -----------------------------------------------------------------------------------------

    def submit(
        self,
        batch: pa.RecordBatch,
        keys: pa.StringArray | Sequence[str | None] | None,
        *,
        unscoped_keys: pa.StringArray | None = None,
        rows_share_keys: bool = False,
        requests: Sequence[int] | None = None,
        senders: Sequence[str] = (),
    ) -> Future[HandedOver]:
        """Hand a batch over; waits while too much is not answered.

        Args:
            batch: of the receiver's columns.
            keys: of its rows, null for a row without one; None where none has.
            unscoped_keys: these keys without their scopes, one to one: a row is also left out if the driver log has
                its unscoped key. The unscoped keys are not registered.
            rows_share_keys: the batch is one request, and a key in it is that of all rows that have it. Otherwise a
                key is one row's, and those behind it are its repeats.
            requests: the batch is several requests, with these numbers of rows, and the answer says what was done
                with the rows of each. Rows of one may share a key as above; no two requests have a key in common.
            senders: of each request who sent it: where all rows of a request are dead letters, they are within the
                sender's budget (``dead_letter_budget``), because the sender is refused.

        Returns:
            A future: its result comes when the driver log has the rows, an error means that the sender must not be
            acknowledged.

        Raises:
            RecordTypeError: the batch has other columns. Nothing was taken.
            ValueError: there are not as many keys as rows.
            HandOverClosedError: after ``close``.
            Exception: what has ended the hand-over, as a fenced receiver.
        """
        share = rows_share_keys or requests is not None
        made = submit_of(conform(batch, self._schema), keys, rows_share_keys=share, content=self._content)
        if requests is not None:
            if sum(requests) != made.batch.num_rows:
                raise ValueError(f"requests of {sum(requests)} rows for {made.batch.num_rows} rows")
            made.requests = Requests(requests, senders)
            made.places = np.arange(made.batch.num_rows)
        if keys is not None and unscoped_keys is not None:
            made.unscoped = by_key(storable(keys), storable(unscoped_keys))
        with self._changed:
            while self._open() and not self._queue.has_room(made):
                self._changed.wait()
            return self._take(made)

    def close(self) -> None:
        """Take nothing more; return when everything that was submitted is answered. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._thread is not None:
                self._changed.wait()

    def _open(self) -> bool:
        """Return True if submits are accepted; raise why not otherwise. The lock is held."""
        if self._failed is not None:
            raise self._failed
        if self._closed:
            raise HandOverClosedError(HandOverClosedError.__doc__)
        return True

    def _take(self, made: Submit) -> Future[HandedOver]:
        """Take a submit into the queue. The lock is held."""
        made.future.set_running_or_notify_cancel()
        self._queue.add(made)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="keyed hand-over", daemon=True)
            self._thread.start()
        if self._queue.messages >= self._due_with or self._queue.fills_a_block:
            self._changed.notify_all()
        return made.future

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001  whatever it is, the submitters get it
            self._fail(error)

    def _step(self) -> bool:
        """Do what is next, or wait for it; return False when there is no work left and the thread ends."""
        if self._blocks.collect(self._answer) or self._blocks.store():
            self._blocks.recover()
        elif self._may_begin():
            self._begin()
        else:
            return self._wait()
        return True

    def _answer(self, block: KeyedBlock) -> None:
        answered = []
        for part in block.parts:
            part.submit.added += part.batch.num_rows
            if part.last:
                answered.append(part.submit)
        if not answered:
            return
        with self._changed:
            # Before the callbacks, so that submits that wait for room go on.
            self._queue.note_answered(answered)
            self._changed.notify_all()
        for submit in answered:
            outcomes = () if submit.requests is None else submit.requests.outcomes()
            submit.future.set_result(HandedOver(submit.added, submit.duplicates, outcomes))

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()

    def _may_begin(self) -> bool:
        with self._changed:
            return self._seconds_until_next() == 0

    def _seconds_until_next(self) -> float | None:
        """Return the seconds until the next block is due; None if there is nothing, or no room, for one.

        The lock is held.
        """
        if not self._queue or self._blocks.with_rows >= self._under_way_at_most:
            return None
        if self._closed or self._queue.fills_a_block or self._queue.messages >= self._blocks.messages_of_early_block:
            return 0
        return max(0.0, self._not_before - time.monotonic())

    def _begin(self) -> None:
        """Make a block of what waits, and store it."""
        with self._changed:
            self._not_before = time.monotonic() + self._gathering
            waiting = self._queue
            most = self._path.piece(waiting.rows, waiting.nbytes) if waiting.rows else 0
            before = waiting.messages
            block = KeyedBlock(list(waiting.parts(most)))
            block.messages = before - waiting.messages
        self._blocks.add(block)

    def _wait(self) -> bool:
        with self._changed:
            if not self._blocks:
                self._changed.wait_for(lambda: self._queue or self._closed, _IDLE_SECONDS)
            if not self._blocks and not self._queue:
                self._thread = None
                self._changed.notify_all()
                return False
            if self._blocks.is_first_settled:
                return True
            seconds = self._seconds_until_next()
            if seconds != 0:
                if self._queue:
                    # What is submitted until then need not wake it; nor if a block must be done first.
                    self._due_with = math.inf if seconds is None else self._blocks.messages_of_early_block
                with self._path.in_flight:
                    self._changed.wait(seconds)
                self._due_with = 0
            return True

    def _fail(self, error: BaseException) -> None:
        """Take nothing more, and fail the unanswered submits, in order."""
        with self._changed:
            self._failed = error
            # A submit may have parts in several blocks.
            submits, stored = self._blocks.clear()
            failed = {id(submit): submit for submit in submits + self._queue.clear()}
        for submit in failed.values():
            submit.future.set_exception(error)
        with self._path.in_flight:
            # Blocks in flight may still be refused for a key.
            wait(stored)
        if any(isinstance(future.exception(), DuplicateKeysError) for future in stored):
            # Other blocks wait until this is called.
            with suppress(Exception):
                self._path.writer.resume_after_refusal()
        with self._changed:
            self._thread = None
            self._changed.notify_all()
        # Last: a log line that can't be written must not keep a thread waiting.
        _log.warning("records that were handed over are not registered by this process", error=str(error))


class _BlocksInFlight:
    """Hold the blocks that are not answered, in order, and their keys. Only the hand-over's thread uses it."""

    def __init__(self, path: BlockPath, content: str | None, on_answered: Callable[[object], None]) -> None:
        self._path = path
        self._content = content
        self._on_answered = on_answered
        self._blocks: deque[KeyedBlock] = deque()
        self._keys: set[str] = set()
        self._careful = _CAREFUL_BLOCKS

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self._blocks)

    @property
    def with_rows(self) -> int:
        """Return how many have rows."""
        return sum(block.rows > 0 for block in self._blocks)

    @property
    def is_first_settled(self) -> bool:
        """Return whether the first one can be answered, or was refused."""
        return bool(self._blocks) and self._blocks[0].is_settled

    @property
    def messages_of_early_block(self) -> int:
        """Return with how many messages a block is due before its time."""
        return max(_MANY_MESSAGES, sum(block.messages for block in self._blocks))

    def collect(self, answer: Callable[[KeyedBlock], None]) -> bool:
        """Answer what is registered, in order; return whether a block was refused for its keys."""
        while self._blocks:
            block = self._blocks[0]
            if block.rows:
                if block.future is None or not block.future.done():
                    return False
                error = block.future.exception()
                if isinstance(error, DuplicateKeysError):
                    return True
                if error is not None:
                    raise error
            self._blocks.popleft()
            self._keys -= block.keys
            answer(block)
        return False

    def store(self) -> bool:
        """Store the blocks that are due, in order; return whether one was refused."""
        for block in self._blocks:
            if not block.rows or block.future is not None:
                continue
            rows = block.joined()
            checked = self._path.until_read(partial(self._path.rows.check, rows))
            if checked.invalid is not None:
                before = set(block.keys)
                letters = block.leave_out_invalid(checked)
                self._keys -= before - block.keys
                self._path.store_dead_letters(letters)
                if not block.rows:
                    continue
            try:
                block.future = self._path.push_keyed(checked.batch, sorted(block.keys))
            except DuplicateKeysError:
                return True
            block.future.add_done_callback(self._on_answered)
        return False

    def recover(self) -> None:
        """Leave out what the driver log has, after a refusal, and have the rest stored again."""
        under_way = [block.future for block in self._blocks if block.future is not None]
        with self._path.in_flight:
            wait(under_way)
        self._path.writer.resume_after_refusal()
        self._careful = _CAREFUL_BLOCKS
        refused = [
            block
            for block in self._blocks
            if block.rows and (block.future is None or isinstance(block.future.exception(), DuplicateKeysError))
        ]
        known = self._known(key for block in refused for key in block.keys)
        for block in refused:
            block.future = None
            block.leave_out(known)
        self._keys -= known

    def add(self, block: KeyedBlock) -> None:
        """Take a block that is to be stored, without the rows whose keys are known."""
        # From here on, a failure below reaches the submitters that wait for the block.
        self._blocks.append(block)
        letters: list[DeadLetter] = []
        for part in block.parts:
            letters += part.submit.letters
            part.submit.letters = []
            keys = part.distinct_keys()
            if again := keys & self._keys:
                letters += self._with_other_content(part, again)
                part.leave_out(again)
                keys -= again
            block.keys |= keys
            self._keys |= keys
        if letters:
            self._path.store_dead_letters(letters)
        block.count()
        self._leave_out_unscoped(block)
        if self._careful and block.keys:
            # If the driver log is unavailable, the block is safer on the disk.
            known = self._known(block.keys, wait=False)
            block.leave_out(known)
            self._keys -= known
            self._careful = _CAREFUL_BLOCKS if known else self._careful - 1
        if block.rows:
            self._path.wait_for_rate(block.rows, sum(part.batch.nbytes for part in block.parts))
        elif len(self._blocks) > 1:
            # It is answered with the blocks before it.
            self._blocks.pop()
            self._blocks[-1].parts += block.parts

    def clear(self) -> tuple[list[Submit], list[Future[NewBlock]]]:
        """Forget all; return their submits, and the futures of those that were stored."""
        submits = [part.submit for block in self._blocks for part in block.parts]
        stored = [block.future for block in self._blocks if block.future is not None]
        self._blocks.clear()
        self._keys.clear()
        return submits, stored

    def _known(self, keys: Iterable[str], *, wait: bool = True) -> set[str]:
        asked = sorted(set(keys))
        return self._path.known_keys(asked, wait=wait) if asked else set()

    def _with_other_content(self, part: KeyedPart, keys: set[str]) -> list[DeadLetter]:
        """Leave out a part's rows of which an earlier one in flight has the key; return those with other content."""
        if self._content is None:
            return []
        seen: dict[str, object] = {}
        wanted = pa.array(sorted(keys), pa.string())
        for earlier in (one for block in self._blocks for one in block.parts):
            if earlier is part:
                break
            earlier.see(wanted, self._content, seen)
        return part.take_repeats(seen, self._content)

    def _leave_out_unscoped(self, block: KeyedBlock) -> None:
        """Leave out the rows whose keys the driver log has without their scopes; waits for its answer."""
        # Keys of several scopes may be the same without them.
        by_unscoped: dict[str, set[str]] = {}
        for part in block.parts:
            for key, unscoped in part.submit.unscoped.items():
                if key in block.keys:
                    by_unscoped.setdefault(unscoped, set()).add(key)
        known = {key for unscoped in self._known(by_unscoped) for key in by_unscoped[unscoped]}
        block.leave_out(known)
        self._keys -= known
