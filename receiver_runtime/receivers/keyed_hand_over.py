"""Hands records over that their sender brings again until it is told, and leaves out what the stream has already.

A receiver submits batches, and acknowledges the sender in the future's callback: then the block that holds the records
is registered, and the records' keys with it, in one transaction. So a key that comes again is known, whoever asks,
after whatever died; it is forgotten when the stream's window is over.

What is decided where:

- **Which keys are known** is the driver log's to say. A block goes in with all of its keys or not at all. A refusal
  (``DuplicateKeysError``) takes all blocks with it that are under way: once they are settled, the driver log is asked
  which of their keys it has, their rows are left out and counted, and the rest is stored again, in order. Each refusal
  names a key that is committed, so each round has less to do.
- **Keys under way here** are ours to know: a key that comes again before its first block is registered is left out at
  once, and counted as what it will be. Its future waits for that block: blocks are answered in order, and where one
  fails for good, all that came after fail with it.
- **A key that comes again within one submit** is left out as one that came before, the first row counts: a sender
  repeats itself at once, too, and both messages are read together. Unless the submit is one request whose rows share a
  key: then they **stay in one block**, for a half of them that is registered would have the other half left out at the
  next try. A block is cut between keys, even where that makes it larger than ``max_block_bytes``.
- **A lost answer** says nothing, and is resolved by the registrar, with the identical blocks.
- While keys were found known lately (after a take-over the sender brings much again), they are asked for before the
  block is stored: a refusal costs more than a question.

Submits that come close together share a block. Memory: submits that are not answered are bounded, by their number and
their bytes; ``submit`` waits. One thread works while there is anything to do, and ends with it. It calls the futures'
callbacks, in the order of the submits; they must return soon, and must not submit.
"""

from __future__ import annotations

import hashlib
import threading
import time
from bisect import bisect_right
from collections import deque
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from receiver_runtime.records import conform
from tracker_store.errors import DuplicateKeysError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from receiver_runtime.attached_supervisor import AttachedSupervisor, KeyedPath
    from tracker_store.blocks import NewBlock

_log = structlog.get_logger(__name__)

#: Submits that may wait for their answers, unless said otherwise.
MOST_IN_FLIGHT = 1000
# Bytes of them, in blocks of the largest size.
_MOST_BLOCKS_OF_BYTES = 4
# Stored, and not registered.
_BLOCKS_UNDER_WAY = 4
# Blocks begin so far apart, but for full ones: who comes meanwhile shares the next.
_GATHERING_SECONDS = 0.02
# After a known key so many blocks are asked for before they are stored.
_CAREFUL_BLOCKS = 16
# What an index of the driver log takes; a longer key is known by its digest.
_LONGEST_KEY_BYTES = 500


class HandOverClosedError(Exception):
    """The receiver is stopping and takes nothing more: don't acknowledge the sender, it comes again."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What became of a submit's rows: ``added`` with it, or left out, since the stream had their keys."""

    added: int
    duplicates: int


@dataclass(slots=True)
class _Submit:
    """One, as far as it was not answered."""

    batch: pa.RecordBatch
    keys: pa.Array | None
    #: Rows before which it may be cut, where keys stand in several rows; None: anywhere.
    cuts: Sequence[int] | None
    nbytes: int
    future: Future[HandedOver] = field(default_factory=Future)
    #: Rows that went into blocks, from the first on.
    taken: int = 0
    added: int = 0
    duplicates: int = 0

    @property
    def left(self) -> int:
        return int(self.batch.num_rows) - self.taken

    def cut_at(self, rows: int, *, at_least_one: bool) -> int:
        """How many rows to take, that are ``rows`` or fewer; more where it must be one at least and can't be less."""
        if self.cuts is None:
            return max(rows, 1) if at_least_one else rows
        found = bisect_right(self.cuts, self.taken + rows) - 1
        end = self.cuts[found] if found >= 0 else 0
        if end <= self.taken:
            if not at_least_one:
                return 0
            end = self.cuts[bisect_right(self.cuts, self.taken)]
        return end - self.taken


@dataclass(slots=True)
class _Part:
    """Rows of one submit in one block."""

    submit: _Submit
    batch: pa.RecordBatch
    keys: pa.Array | None
    #: Whether the submit is answered with it.
    last: bool

    def leave_out(self, known: set[str]) -> None:
        """The rows with these keys; they are counted."""
        if self.keys is None:
            return
        keep = pc.invert(pc.is_in(self.keys, value_set=pa.array(sorted(known), pa.string())))
        before = self.batch.num_rows
        self.batch = self.batch.filter(keep)
        self.keys = self.keys.filter(keep)
        self.submit.duplicates += before - self.batch.num_rows

    def distinct_keys(self) -> set[str]:
        return set() if self.keys is None else {key for key in self.keys.to_pylist() if key is not None}


@dataclass(slots=True)
class _Block:
    """Parts that are stored together. Without rows it is done as soon as those before it are."""

    parts: list[_Part]
    keys: set[str] = field(default_factory=set)
    rows: int = 0
    #: Of the registrar's; None where it is to be stored, or has no rows.
    future: Future[NewBlock] | None = None

    def leave_out(self, known: set[str]) -> None:
        gone = self.keys & known
        if gone:
            for part in self.parts:
                part.leave_out(gone)
            self.keys -= gone
            self.count()

    def count(self) -> None:
        self.rows = sum(part.batch.num_rows for part in self.parts)


class KeyedHandOver:
    """See the module. Any thread may submit; ``close`` at the receiver's ``on_stop``, and make another at a start.

    Args:
        supervisor: the receiver's.
        most_in_flight: submits that may wait for their answers.
        most_bytes: of theirs; four blocks of the largest size unless given.
    """

    def __init__(
        self, supervisor: AttachedSupervisor, *, most_in_flight: int = MOST_IN_FLIGHT, most_bytes: int | None = None
    ) -> None:
        if most_in_flight < 1:
            raise ValueError(f"most_in_flight={most_in_flight}: give 1 or more")
        self._schema = supervisor.record_schema
        self._path: KeyedPath = supervisor.block_path
        settings = supervisor.settings
        self._most_in_flight = most_in_flight
        self._largest_block = settings.max_block_bytes
        self._most_bytes = _MOST_BLOCKS_OF_BYTES * self._largest_block if most_bytes is None else most_bytes
        self._under_way_at_most = min(_BLOCKS_UNDER_WAY, settings.block_queue_size)
        self._gathering = min(_GATHERING_SECONDS, settings.block_interval)
        # Under this lock: the submits of which rows are in no block yet, what is not answered, how it ends.
        self._changed = threading.Condition()
        self._queue: deque[_Submit] = deque()
        self._submits = 0
        self._bytes = 0
        self._rows_waiting = 0
        self._bytes_waiting = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failed: BaseException | None = None
        # The thread's alone; the next one finds them as it left them.
        self._blocks: deque[_Block] = deque()
        self._keys: set[str] = set()
        self._careful = _CAREFUL_BLOCKS
        self._not_before = 0.0

    # -- the receiver's side -----------------------------------------------------------------------------------------

    def submit(
        self,
        batch: pa.RecordBatch,
        keys: pa.StringArray | Sequence[str | None] | None,
        *,
        rows_share_keys: bool = False,
    ) -> Future[HandedOver]:
        """Hand a batch over; waits while too much is not answered.

        Args:
            batch: of the receiver's columns.
            keys: of its rows, null for a row without one; None where none has.
            rows_share_keys: the batch is one request, and a key in it is that of all rows that have it. Otherwise a
                key is one row's, and those behind it are its repeats.

        Returns:
            A future: its result comes when the driver log has the rows, an error means that the sender must not be
            acknowledged.

        Raises:
            RecordTypeError: the batch has other columns. Nothing was taken.
            ValueError: there are not as many keys as rows.
            HandOverClosedError: after ``close``.
            Exception: what has ended the hand-over, as a fenced receiver.
        """
        made = self._made(batch, keys, rows_share_keys=rows_share_keys)
        with self._changed:
            while self._open() and not self._has_room(made):
                self._changed.wait()
            return self._take(made)

    @property
    def in_flight(self) -> int:
        """Submits that are not answered."""
        with self._changed:
            return self._submits

    def close(self) -> None:
        """Take nothing more; returns when everything that was submitted is answered. Safe twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._thread is not None:
                self._changed.wait()

    def _made(
        self,
        batch: pa.RecordBatch,
        keys: pa.StringArray | Sequence[str | None] | None,
        *,
        rows_share_keys: bool,
    ) -> _Submit:
        conformed = conform(batch, self._schema)
        if keys is None:
            return _Submit(conformed, None, None, conformed.nbytes)
        taken = _storable(keys)
        if len(taken) != conformed.num_rows:
            raise ValueError(f"{len(taken)} keys for {conformed.num_rows} rows: give one for each row, null for none")
        if _are_distinct(taken):
            return _Submit(conformed, taken, None, conformed.nbytes)
        if rows_share_keys:
            return _Submit(conformed, taken, _cuts(taken), conformed.nbytes)
        firsts = _firsts(taken)
        kept = conformed.take(firsts)
        return _Submit(kept, taken.take(firsts), None, kept.nbytes, duplicates=conformed.num_rows - kept.num_rows)

    def _open(self) -> bool:
        """With the lock held. Raises why not."""
        if self._failed is not None:
            raise self._failed
        if self._closed:
            raise HandOverClosedError(HandOverClosedError.__doc__)
        return True

    def _has_room(self, made: _Submit) -> bool:
        """With the lock held; one that alone is larger than all that may be goes by itself."""
        return not self._submits or (
            self._submits < self._most_in_flight and self._bytes + made.nbytes <= self._most_bytes
        )

    def _take(self, made: _Submit) -> Future[HandedOver]:
        """With the lock held."""
        made.future.set_running_or_notify_cancel()
        self._queue.append(made)
        self._submits += 1
        self._bytes += made.nbytes
        self._rows_waiting += made.batch.num_rows
        self._bytes_waiting += made.nbytes
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="keyed hand-over", daemon=True)
            self._thread.start()
        self._changed.notify_all()
        return made.future

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001  whatever it is, it is handed to who submitted
            self._fail(error)

    def _step(self) -> bool:
        """Do what is next, or wait for it; False at the end of the work, when the thread is given up."""
        if self._collect() or self._store():
            self._recover()
        elif self._may_begin():
            self._begin()
        else:
            return self._wait()
        return True

    def _collect(self) -> bool:
        """Answer what is registered, in order; says whether a block was refused for its keys."""
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
            self._answer(block)
        return False

    def _answer(self, block: _Block) -> None:
        answered = []
        for part in block.parts:
            part.submit.added += part.batch.num_rows
            if part.last:
                answered.append(part.submit)
        if not answered:
            return
        with self._changed:
            # Before the callbacks: who waits for room may come.
            self._submits -= len(answered)
            self._bytes -= sum(submit.nbytes for submit in answered)
            self._changed.notify_all()
        for submit in answered:
            submit.future.set_result(HandedOver(submit.added, submit.duplicates))

    def _recover(self) -> None:
        """After a refusal: leave out what the driver log has, and have the rest stored again."""
        under_way = [block.future for block in self._blocks if block.future is not None]
        with self._path.handing_over():
            wait(under_way)
        self._path.go_on_after_refusal()
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

    def _known(self, keys: Iterable[str], *, wait: bool = True) -> set[str]:
        asked = sorted(set(keys))
        return self._path.known_keys(asked, wait=wait) if asked else set()

    def _store(self) -> bool:
        """Store what is to be, in order; says whether that was refused."""
        for block in self._blocks:
            if block.rows and block.future is None:
                batches = [part.batch for part in block.parts if part.batch.num_rows]
                try:
                    block.future = self._path.push_keyed(pa.concat_batches(batches), sorted(block.keys))
                except DuplicateKeysError:
                    return True
                block.future.add_done_callback(self._wake)
        return False

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()

    def _may_begin(self) -> bool:
        with self._changed:
            return self._seconds_until_next() == 0

    def _seconds_until_next(self) -> float | None:
        """With the lock held: when the next block is due; None where there is nothing, or no room, for one."""
        if not self._queue or sum(block.rows > 0 for block in self._blocks) >= self._under_way_at_most:
            return None
        if self._closed or self._bytes_waiting >= self._largest_block:
            return 0
        return max(0.0, self._not_before - time.monotonic())

    def _begin(self) -> None:
        """Make a block of what waits, and store it."""
        with self._changed:
            self._not_before = time.monotonic() + self._gathering
            most = self._path.piece(self._rows_waiting, self._bytes_waiting) if self._rows_waiting else 0
            block = _Block(list(self._parts(most)))
        # From here on, so that whatever fails below is told to those who wait for it.
        self._blocks.append(block)
        for part in block.parts:
            keys = part.distinct_keys()
            if again := keys & self._keys:
                part.leave_out(again)
                keys -= again
            block.keys |= keys
            self._keys |= keys
        block.count()
        if self._careful and block.keys:
            # Where the driver log is away, the block is better on the disk.
            known = self._known(block.keys, wait=False)
            block.leave_out(known)
            self._keys -= known
            self._careful = _CAREFUL_BLOCKS if known else self._careful - 1
        if block.rows:
            self._path.wait_for_rate(block.rows, sum(part.batch.nbytes for part in block.parts))
        elif len(self._blocks) > 1:
            # Answered with those before it.
            self._blocks.pop()
            self._blocks[-1].parts += block.parts

    def _parts(self, most: int) -> Iterable[_Part]:
        """With the lock held: of submits in their order, up to so many rows and a block's bytes; one at least."""
        rows = nbytes = 0
        while self._queue:
            submit = self._queue[0]
            wanted = self._fitting(submit, most - rows, self._largest_block - nbytes)
            taken = submit.cut_at(wanted, at_least_one=rows == 0 and submit.left > 0)
            if not taken and submit.left:
                return
            batch = submit.batch.slice(submit.taken, taken)
            keys = None if submit.keys is None else submit.keys.slice(submit.taken, taken)
            submit.taken += taken
            rows += taken
            nbytes += batch.nbytes
            self._rows_waiting -= taken
            if not submit.left:
                self._queue.popleft()
            # About: what a slice takes is not what it took in the whole.
            self._bytes_waiting = max(0, self._bytes_waiting - batch.nbytes) if self._queue else 0
            yield _Part(submit, batch, keys, not submit.left)

    def _fitting(self, submit: _Submit, rows: int, nbytes: int) -> int:
        """How many of its rows are in these bounds."""
        found = min(submit.left, rows)
        while found > 0 and submit.batch.slice(submit.taken, found).nbytes > nbytes:
            found //= 2
        return max(0, found)

    def _wait(self) -> bool:
        with self._changed:
            if not self._blocks and not self._queue:
                self._thread = None
                self._changed.notify_all()
                return False
            if self._blocks and self._is_settled(self._blocks[0]):
                return True
            seconds = self._seconds_until_next()
            if seconds != 0:
                with self._path.handing_over():
                    self._changed.wait(seconds)
            return True

    @staticmethod
    def _is_settled(block: _Block) -> bool:
        return not block.rows or (block.future is not None and block.future.done())

    def _fail(self, error: BaseException) -> None:
        """Nothing more is taken; who is not answered is told why, in order."""
        with self._changed:
            self._failed = error
            # One may have parts in several blocks.
            submits = [part.submit for block in self._blocks for part in block.parts] + list(self._queue)
            failed = {id(submit): submit for submit in submits}
            stored = [block.future for block in self._blocks if block.future is not None]
            self._blocks.clear()
            self._queue.clear()
            self._keys.clear()
            self._submits = self._bytes = self._rows_waiting = self._bytes_waiting = 0
        for submit in failed.values():
            submit.future.set_exception(error)
        with self._path.handing_over():
            # Also what is under way yet may be refused for a key.
            wait(stored)
        if any(isinstance(future.exception(), DuplicateKeysError) for future in stored):
            # Others wait for it.
            with suppress(Exception):
                self._path.go_on_after_refusal()
        with self._changed:
            self._thread = None
            self._changed.notify_all()
        # Last: a line that can't be written must keep nobody waiting.
        _log.warning("records that were handed over are not registered by this process", error=str(error))


def _storable(keys: pa.StringArray | Sequence[str | None]) -> pa.Array:
    """Keys as the driver log takes them: text without NUL, of a bounded length; else their digests."""
    taken = keys.cast(pa.string()) if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
    longest = pc.max(pc.binary_length(taken)).as_py() or 0
    if longest <= _LONGEST_KEY_BYTES and not pc.any(pc.match_substring(taken, "\0")).as_py():
        return taken
    return pa.array([None if key is None else _short(key) for key in taken.to_pylist()], pa.string())


def _short(key: str) -> str:
    data = key.encode()
    if len(data) <= _LONGEST_KEY_BYTES and b"\0" not in data:
        return key
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _are_distinct(keys: pa.Array) -> bool:
    return bool(pc.count_distinct(keys, mode="only_valid").as_py() == len(keys) - keys.null_count)


def _firsts(keys: pa.Array) -> pa.Array:
    """The rows that are the first with their key, and those without one."""
    seen: set[str] = set()
    firsts = []
    for row, key in enumerate(keys.to_pylist()):
        if key not in seen:
            firsts.append(row)
        if key is not None:
            seen.add(key)
    return pa.array(firsts, pa.int64())


def _cuts(keys: pa.Array) -> Sequence[int]:
    """Before which rows a submit may be cut so that no key is on both sides."""
    values = keys.to_pylist()
    last = {key: row for row, key in enumerate(values) if key is not None}
    cuts = []
    open_until = 0
    for row, key in enumerate(values):
        open_until = max(open_until, row if key is None else last[key])
        if open_until == row:
            cuts.append(row + 1)
    return cuts
