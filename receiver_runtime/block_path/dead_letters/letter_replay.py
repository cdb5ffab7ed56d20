"""Parse dead letters of a typed stream again, as `forebay dead-letters replay` asks, and store those that fit.

Each record goes in with a key of its own, in the transaction of its block, and the row is marked afterwards. So a
process that ends in between doubles nothing: the next one finds the keys, and tries only what is not there. A record
that still does not fit stays in its row. It never keeps a receiver from starting, and no row keeps another from being
parsed: one that can't be is reported, and can be saved then; one that waits for something stays asked for.
"""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING

import numpy as np

from receiver_runtime.block_path.text_check import RowsWaitError
from receiver_runtime.block_path.write_ahead_log import WriteAheadLogError
from receiver_runtime.block_store.frames.errors import BlockKeyError, StoreUnavailableError
from receiver_runtime.block_store.frames.reading import letters_of
from receiver_runtime.reporting.driver_log import GivenUpError
from tracker_store.connection.errors import DriverLogError, DuplicateKeysError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.block_path.block_path import BlockPath
    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from receiver_runtime.block_store.frames.encryption import BlockKeys
    from receiver_runtime.block_store.stores.interface import BlockStore
    from tracker_store.blocks.dead_letters import WantedLetters

# Seconds between two looks whether the receiver is to end.
_LOOK_SECONDS = 0.2
# No key of a sender begins with this character (``storable_keys``).
_KEY = "\x1fdead letter "
# What is wrong with no single row: the rows stay asked for.
_OF_ALL_ROWS = (DriverLogError, GivenUpError, RowsWaitError, WriteAheadLogError)


class LetterReplay:
    """Replay one receiver's dead letters; see the module.

    Args:
        store: has the receiver's segments.
        keys: of encrypted frames.
        refusals: returns which letters the source's own parser refuses (``Source.refusals``).
    """

    def __init__(
        self,
        store: BlockStore,
        keys: BlockKeys,
        refusals: Callable[[str, Sequence[bytes]], Mapping[int, str]] = lambda *_: {},
    ) -> None:
        self._store = store
        self._keys = keys
        self._refusals = refusals

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
            if is_over():
                raise GivenUpError(GivenUpError.__doc__)
            left = wanted.records
            try:
                reason, letters = self._letters(wanted)
            except (BlockKeyError, StoreUnavailableError) as error:
                context.reporter.error(f"dead letter {wanted.id} can't be read now, the next start tries it", error)
                continue
            except Exception as error:  # noqa: BLE001  reported: other rows can be read
                context.reporter.error(f"dead letter {wanted.id} could not be read, to parse it again", error)
            else:
                left = self._replayed(wanted, reason, letters, context, path, is_over)
            context.driver_log.end_letter_replay(wanted.id, left, to=context.stream_name)

    def _letters(self, wanted: WantedLetters) -> tuple[str, Sequence[bytes]]:
        at = wanted.handle
        frame = self._store.read_frame(wanted.path, at.offset, at.length, at.crc32c)
        reason = frame.header.reason
        return "" if reason is None else reason.label, letters_of(frame, wanted.path, at.offset, self._keys)

    def _replayed(
        self,
        wanted: WantedLetters,
        reason: str,
        letters: Sequence[bytes],
        context: ReceiverContext,
        path: BlockPath,
        is_over: Callable[[], bool],
    ) -> Sequence[int]:
        """Store the records of a row that fit, and return the numbers of the others: all if the row can't be parsed.

        Raises: whatever kept it from that, and GivenUpError. What is stored by then is found by its keys.
        """
        numbers = range(1, len(letters) + 1) if wanted.records is None else wanted.records
        keys = {number: f"{_KEY}{wanted.id}/{number}" for number in numbers}
        known = path.known_keys(list(keys.values()))
        waiting = [number for number in numbers if keys[number] not in known]
        try:
            refused = self._refusals(reason, [letters[number - 1] for number in waiting])
            taken = [number for place, number in enumerate(waiting) if place not in refused]
            rows = context.rows.rows_of([letters[number - 1] for number in taken])
            if not taken or rows is None:
                return waiting
            checked = context.rows.check(rows)
            fits = np.ones(len(taken), np.bool_) if checked.invalid is None else ~checked.invalid
            fitting = {number: keys[number] for number, fit in zip(taken, fits, strict=True) if fit}
            stored = path.push_keyed(checked.batch, list(fitting.values())) if fitting else None
        except _OF_ALL_ROWS:
            raise
        except Exception as error:  # noqa: BLE001  reported: nothing of the row was stored, and others can be parsed
            context.reporter.error(f"dead letter {wanted.id} could not be parsed again", error)
            return waiting
        if stored is not None:
            while not stored.done():
                if is_over():
                    raise GivenUpError(GivenUpError.__doc__)
                wait([stored], _LOOK_SECONDS)
            stored.result()
        return [number for number in waiting if number not in fitting]
