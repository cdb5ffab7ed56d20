"""Bring one receiver's dead letters, under one claim, into the block store and the driver log.

Owns the order: what is over a budget is counted (``dead_letter_budget``), the rest is stored by one sync and recorded
by one statement, and an event tells of it. Blocks never wait for it: dead letters have a write-ahead log of their own.
It must never drop a letter that has no peer, and never raise for a full disk: the receiver would drop the good records
that it read together with the bad ones.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from receiver_runtime.block_path.dead_letters.dead_letter_budget import (
    MOST_BYTES,
    MOST_LETTERS,
    DeadLetterBudget,
    Dropped,
)
from receiver_runtime.block_path.write_ahead_log import WriteAheadLogError
from receiver_runtime.watching.backoff import store_backoff
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from receiver_runtime.block_path.block_handler import BlockHandler, DeadLetter
    from receiver_runtime.block_path.block_writer import BlockWriter
    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from receiver_runtime.block_store.frames.frame import DeadLetterReason
    from tracker_store.blocks.dead_letters import StoredDeadLetter

# What goes into one write and one statement.
_LETTERS_AT_ONCE = 10_000
_BYTES_AT_ONCE = 8 * 2**20


class DeadLetterPath:
    """Store and record dead letters; see the module. Safe from any thread."""

    def __init__(self, context: ReceiverContext, handler: BlockHandler, writer: BlockWriter) -> None:
        self._handler = handler
        self._writer = writer
        self._driver_log = context.driver_log
        self._reporter = context.reporter
        self._progress = context.progress
        # Guards everything below.
        self._lock = threading.Lock()
        self._budget = DeadLetterBudget(context.clock)
        # What is dropped and not recorded yet, by reason: the next row of the reason has it.
        self._dropped: dict[DeadLetterReason, Dropped] = {}

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Store and record letters; return when all that are kept are durable and recorded.

        What is over a budget is recorded with the next letter of its reason that is kept, or by ``close``.

        Raises: whatever stopped the storing for good.
        """
        if not letters:
            return
        with self._lock:
            kept, over = self._budget.take(letters)
            self._add(over)
        for reason, dropped in over.items():
            self._reporter.event(
                ReceiverEventKind.BAD_RECORD,
                f"dead letters were counted and not kept, a sender's budget is used up: {reason.label}",
                f"{dropped.letters} letters, {dropped.nbytes} bytes; of each sender {MOST_LETTERS} letters and "
                f"{MOST_BYTES} bytes are kept in a minute",
            )
        for portion in _portions(kept):
            # Of the first letter of each reason.
            whys = {letter.reason.label: letter.why for letter in reversed(portion) if letter.why}
            self._record(self._store(portion), whys)

    def close(self) -> None:
        """Record what was dropped and is not recorded yet. A full disk does not delay it: these are only counts.

        Raises: what kept it from being recorded.
        """
        with self._lock:
            waiting = list(self._dropped)
        if waiting:
            self._record(self._handler.store_dead_letters((), sequence=self._writer.newest_sequence, empty=waiting), {})

    def _record(self, stored: list[StoredDeadLetter], whys: Mapping[str, str]) -> None:
        rows = self._with_dropped(stored)
        self._driver_log.add_dead_letters(rows)
        self._handler.dead_letters_recorded(rows)
        for row, one in zip(rows, stored, strict=True):
            if row.letters:
                why = f": {whys[row.reason]}" if row.reason in whys else ""
                rest = f", {one.dropped_bytes} bytes more were counted and not kept" if one.dropped_bytes else ""
                self._reporter.event(
                    ReceiverEventKind.BAD_RECORD,
                    f"a record went aside as a dead letter: {row.reason}",
                    f"{row.letters} in one group{why}, {row.bytes} bytes, "
                    f"segment {row.handle.segment_id}, offset {row.handle.offset}{rest}",
                )

    def _store(self, letters: Sequence[DeadLetter]) -> list[StoredDeadLetter]:
        backoff = store_backoff()
        while True:
            try:
                with self._writer.storing:
                    rows = self._handler.store_dead_letters(letters, sequence=self._writer.newest_sequence)
            except WriteAheadLogError as error:
                self._reporter.error("a dead letter could not be stored, reading waits for it", error)
                if not self._writer.pause(backoff.next_delay()):
                    raise
            else:
                self._progress.made()
                return rows

    def _add(self, over: Mapping[DeadLetterReason, Dropped]) -> None:
        for reason, dropped in over.items():
            waiting = self._dropped.setdefault(reason, Dropped())
            waiting.letters += dropped.letters
            waiting.nbytes += dropped.nbytes

    def _with_dropped(self, rows: list[StoredDeadLetter]) -> list[StoredDeadLetter]:
        """Return the rows with what is to be recorded as dropped: by the first row of each reason."""
        with self._lock:
            if not self._dropped:
                return rows
            waiting = {reason.label: reason for reason in self._dropped}
            counted = []
            for row in rows:
                reason = waiting.pop(row.reason, None)
                dropped = Dropped() if reason is None else self._dropped.pop(reason)
                counted.append(replace(row, dropped=dropped.letters, dropped_bytes=row.dropped_bytes + dropped.nbytes))
            return counted


def _portions(letters: Sequence[DeadLetter]) -> Iterator[Sequence[DeadLetter]]:
    first, nbytes = 0, 0
    for place, letter in enumerate(letters):
        nbytes += len(letter.data)
        if place > first and (nbytes > _BYTES_AT_ONCE or place - first >= _LETTERS_AT_ONCE):
            yield letters[first:place]
            first, nbytes = place, len(letter.data)
    if letters:
        yield letters[first:]
