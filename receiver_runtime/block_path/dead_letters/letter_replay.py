"""Parse dead letters of a typed stream again, as `forebay dead-letters replay` asks, and store those that fit.

Each record goes in with a key of its own, in the transaction of its block, and the row is marked afterwards. So a
process that ends in between doubles nothing: the next one finds the keys, and tries only what is not there. A record
that still does not fit stays in its row. It never keeps a receiver from starting.
"""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING

import numpy as np

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.frames.reading import letters_of
from receiver_runtime.reporting.driver_log import GivenUpError
from tracker_store.connection.errors import DuplicateKeysError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.block_path.block_path import BlockPath
    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from receiver_runtime.block_store.frames.encryption import BlockKeys
    from receiver_runtime.block_store.stores.interface import BlockStore
    from tracker_store.blocks.dead_letters import WantedLetters

# Seconds between two looks whether the receiver is to end.
_LOOK_SECONDS = 0.2
# No key of a sender begins with this character.
_KEY = "\x1fdead letter "


class LetterReplay:
    """Replay one receiver's dead letters; see the module.

    Args:
        store: has the receiver's segments.
        keys: of encrypted frames.
    """

    def __init__(self, store: BlockStore, keys: BlockKeys) -> None:
        self._store = store
        self._keys = keys

    def run(self, context: ReceiverContext, path: BlockPath, is_over: Callable[[], bool]) -> None:
        """Replay all that is asked for. The receiver has not begun, so no other keys are in flight.

        A failure is reported; what is not done then is done at the next start.

        Args:
            is_over: returns whether the receiver is to end.
        """
        try:
            self._run(context, path, is_over)
        except Exception as error:  # noqa: BLE001  reported: the receiver must start
            context.reporter.error("dead letters could not be parsed again, the next start tries it", error)
            if isinstance(error, DuplicateKeysError):
                # Nothing with keys is accepted before this is called.
                path.writer.resume_after_refusal()

    def _run(self, context: ReceiverContext, path: BlockPath, is_over: Callable[[], bool]) -> None:
        for wanted in context.driver_log.wanted_letters():
            left = wanted.records
            try:
                left = self._replayed(wanted, context, path, is_over)
            except (BlockStoreError, OSError) as error:
                context.reporter.error(f"dead letter {wanted.id} could not be read, to parse it again", error)
            context.driver_log.end_letter_replay(wanted.id, left, to=context.stream_name)

    def _replayed(
        self, wanted: WantedLetters, context: ReceiverContext, path: BlockPath, is_over: Callable[[], bool]
    ) -> Sequence[int]:
        """Store the records of a row that fit, and return the numbers of the others.

        Raises: whatever kept it from that, and GivenUpError. What is stored by then is found by its keys.
        """
        at = wanted.handle
        frame = self._store.read_frame(wanted.path, at.offset, at.length, at.crc32c)
        letters = letters_of(frame, wanted.path, at.offset, self._keys)
        numbers = range(1, len(letters) + 1) if wanted.records is None else wanted.records
        keys = {number: f"{_KEY}{wanted.id}/{number}" for number in numbers}
        known = path.known_keys(list(keys.values()))
        waiting = [number for number in numbers if keys[number] not in known]
        rows = context.rows.rows_of([letters[number - 1] for number in waiting])
        if not waiting or rows is None:
            return waiting
        checked = context.rows.check(rows)
        fits = np.ones(len(waiting), np.bool_) if checked.invalid is None else ~checked.invalid
        if checked.batch.num_rows:
            stored = path.push_keyed(
                checked.batch,
                [keys[number] for number, fit in zip(waiting, fits, strict=True) if fit],
                is_over=is_over,
            )
            while not stored.done():
                if is_over():
                    raise GivenUpError(GivenUpError.__doc__)
                wait([stored], _LOOK_SECONDS)
            stored.result()
        return [number for number, fit in zip(waiting, fits, strict=True) if not fit]
