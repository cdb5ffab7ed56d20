"""Gather the messages of all connections, and hand them on together: chunks with their keys, the rest without.

A chunk is answered when its rows are registered and its dead letters are durable. What asks for no acknowledgement goes
to the block generator, as records of a plain socket do. Owns what was read and is not handed on yet, and what is to be
answered. It must never read from a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay_contrib.fluent_forward.records import Rows
from receiver_runtime.receivers.framing import aside
from receiver_runtime.receivers.keyed_hand_over import HandOverClosedError, KeyedHandOver

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from forebay_contrib.fluent_forward.records import Parsed
    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.keyed_blocks import HandedOver
    from receiver_runtime.supervisor.receiver import Receiver

# How long to gather messages before they are handed on, in seconds: each hand-over costs as much as a dozen messages.
_GATHER_SECONDS = 0.002
_MOST_BYTES = 8 * 2**20  # of what waits to be handed on; then nothing more is parsed
_ANSWER_BYTES = 400  # what a chunk and its answer take beside the rows, or a dead letter beside its data


@dataclass(slots=True, eq=False)
class _Chunk:
    """Hold a chunk that is to be answered; it may have come several times."""

    rows: int
    key: str | None
    answers: list[Callable[[], object]]


@dataclass(slots=True)
class _Gathered:
    """Hold what is handed on together."""

    chunks: list[_Chunk] = field(default_factory=list)
    chunk_rows: Rows = field(default_factory=Rows)
    plain_rows: Rows = field(default_factory=Rows)
    #: The chunks that have rows, by their keys: no two may share one.
    by_key: dict[str, _Chunk] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.chunk_rows.nbytes + self.plain_rows.nbytes


class GatheredMessages:
    """See the module. Everything but ``close`` belongs to one loop.

    Args:
        has_keys: whether a chunk that comes again is left out.
    """

    def __init__(self, receiver: Receiver, *, has_keys: bool) -> None:
        self._receiver = receiver
        self._has_keys = has_keys
        self._hand_over = KeyedHandOver(receiver.supervisor)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fluent forward hand-over")
        self._loop = asyncio.get_running_loop()
        self._gathered = _Gathered()
        self._has_some = asyncio.Event()
        self._has_room = asyncio.Event()
        self._closing = False
        self._has_ended = False
        #: Ends with an error when nothing more can be handed on.
        self.handing_on = self._loop.create_task(self._hand_on_until_closed())
        self._failed: BaseException | None = None
        # Keys of chunks whose dead letters are stored, until they are answered: a repeat stores them once.
        self._with_letters: set[str] = set()

    async def wait_for_room(self) -> None:
        """Wait while too much is gathered. A caller waits before it adds something, and before it makes rows.

        What is awaited between the two may have used up the room.
        """
        while not self._has_ended and self._gathered.nbytes >= _MOST_BYTES:
            self._has_room.clear()
            await self._has_room.wait()
        self.raise_failure()

    def add(self, parsed: Parsed, peer: str, answer: Callable[[], object]) -> None:
        """Add what a message holds.

        Args:
            peer: in whose budget dead letters count, if the sender does not ask for an acknowledgement.
            answer: to be called once, when the sender may be acknowledged; never, if it does not ask.
        """
        self.raise_failure()
        if parsed.ack is None:
            letters = [aside(one.reason, one.data, peer=peer) for one in parsed.rows.letters]
            parsed.rows.letters = [
                replace(letter, why=one.why) for letter, one in zip(letters, parsed.rows.letters, strict=True)
            ]
            self._gathered.plain_rows.extend(parsed.rows)
        else:
            self._add_chunk(parsed, answer)
        self._has_some.set()

    async def add_letter(self, letter: DeadLetter) -> None:
        """Add a dead letter of what was no message; wait for room."""
        await self.wait_for_room()
        self._gathered.plain_rows.letters.append(letter)
        self._gathered.plain_rows.nbytes += len(letter.data) + _ANSWER_BYTES
        self._has_some.set()

    def _add_chunk(self, parsed: Parsed, answer: Callable[[], object]) -> None:
        self._gathered.chunk_rows.nbytes += _ANSWER_BYTES + len(parsed.ack or b"")
        key = parsed.key if self._has_keys else None
        known = self._gathered.by_key.get(key) if key is not None else None
        if known is not None:
            # The same chunk again, before the first one was handed on.
            known.answers.append(answer)
            return
        if key is not None:
            if key in self._with_letters:
                parsed.rows.letters = []
            elif parsed.rows.letters:
                self._with_letters.add(key)
        chunk = _Chunk(len(parsed.rows.records), key, [answer])
        self._gathered.chunks.append(chunk)
        if key is not None:
            self._gathered.by_key[key] = chunk
        self._gathered.chunk_rows.extend(parsed.rows)

    @property
    def has_failed(self) -> bool:
        """Return whether nothing more can be handed on."""
        return self._failed is not None

    def raise_failure(self) -> None:
        """Raise the error because of which nothing more could be handed on, if there is one."""
        if self._failed is not None:
            raise self._failed

    async def close(self) -> None:
        """Hand on what is gathered; return when everything is answered, or can't be."""
        self._closing = True
        self._has_some.set()
        try:
            with contextlib.suppress(BaseException):
                await asyncio.shield(self.handing_on)
            await asyncio.to_thread(self._hand_over.close)
        finally:
            self._pool.shutdown(wait=False)
        # The last answers were passed to the loop before that.
        await asyncio.sleep(0)

    # -- handing on --------------------------------------------------------------------------------------------------

    async def _hand_on_until_closed(self) -> None:
        try:
            while not self._closing or self._has_some.is_set():
                await self._has_some.wait()
                if not self._closing:
                    await asyncio.sleep(_GATHER_SECONDS)
                gathered, self._gathered = self._gathered, _Gathered()
                self._has_some.clear()
                self._has_room.set()
                await self._loop.run_in_executor(self._pool, self._hand_on, gathered)
        except BaseException as error:
            self._fail(error)
            raise

    def _hand_on(self, gathered: _Gathered) -> None:
        """Hand on what was gathered. On the pool's thread; waits as long as the block path does."""
        letters = gathered.chunk_rows.letters + gathered.plain_rows.letters
        # Dead letters first: they are durable on return, and the records are not.
        if letters:
            self._receiver.store_dead_letters(letters)
        if empty := [chunk for chunk in gathered.chunks if not chunk.rows]:
            self._loop.call_soon_threadsafe(self._answer, empty)
        if chunks := [chunk for chunk in gathered.chunks if chunk.rows]:
            rows = [chunk.rows for chunk in chunks]
            batch = gathered.chunk_rows.batch()
            if self._has_keys:
                keys = pa.array([chunk.key for chunk in chunks], pa.string()).take(
                    np.repeat(np.arange(len(rows)), rows)
                )
                future = self._hand_over.submit(batch, keys, requests=rows)
            else:
                future = self._hand_over.submit(batch, None)
            future.add_done_callback(partial(self._settled, chunks))
        if gathered.plain_rows.records:
            self._receiver.store_buffered(gathered.plain_rows.batch())

    def _settled(self, chunks: list[_Chunk], future: Future[HandedOver]) -> None:
        """Pass the outcome to the loop. On the hand-over's thread."""
        error = future.exception()
        # A loop that has ended answers no sender.
        with contextlib.suppress(RuntimeError):
            if error is None:
                self._loop.call_soon_threadsafe(self._answer, chunks)
            else:
                self._loop.call_soon_threadsafe(self._fail, error)

    def _answer(self, chunks: list[_Chunk]) -> None:
        for chunk in chunks:
            if chunk.key is not None:
                self._with_letters.discard(chunk.key)
            for answer in chunk.answers:
                answer()

    def _fail(self, error: BaseException) -> None:
        """Take nothing more: no message can be acknowledged."""
        if self._failed is None and not isinstance(error, HandOverClosedError):
            self._failed = error
        self._has_ended = True
        self._has_room.set()
        self.handing_on.cancel()
