"""Hold what a keyed hand-over has taken: submits, and the blocks that their rows go into.

This module owns which rows are left out, and how they are counted for the sender's answer. It must never store a block,
or ask which keys are known. The hand-over's thread, or its lock, guards each of these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.storable_keys import are_distinct, cuts, repeats, storable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from receiver_runtime.block_path.text_check import CheckedRows
    from tracker_store.blocks.blocks import NewBlock


class Outcome(NamedTuple):
    """Count a request's rows: added, known before, or dead letters; ``misfits`` has why, by the row's place in it."""

    added: int
    duplicates: int = 0
    misfits: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Hold what was done with a submit's rows: ``added``, or left out because the stream had their keys.

    ``requests`` has the outcome of each request of a submit of requests.
    """

    added: int
    duplicates: int
    requests: Sequence[Outcome] = ()


@dataclass(slots=True)
class Requests:
    """Count what was done with the rows of each request of a submit."""

    rows: Sequence[int]
    #: Of each request the name of its sender, by which dead letters are limited; empty: they are not.
    senders: Sequence[str] = ()
    duplicates: dict[int, int] = field(default_factory=dict)
    #: Rows that became dead letters, and why, by their places in the request.
    misfits: dict[int, dict[int, str]] = field(default_factory=dict)

    def _letter_of(self, number: int, letter: DeadLetter) -> DeadLetter:
        """Return a request's dead letter, within its sender's budget if all of its rows are dead letters.

        Such a request is refused, so its sender has what is not kept, and may send it again and again.
        """
        if not self.senders or len(self.misfits[number]) != self.rows[number]:
            return letter
        return replace(letter, peer=self.senders[number])

    def outcomes(self) -> Sequence[Outcome]:
        """Return for each request what was done with its rows."""
        if not self.duplicates and not self.misfits:
            return [Outcome(rows) for rows in self.rows]
        left_out = [(self.duplicates.get(n, 0), self.misfits.get(n, {})) for n in range(len(self.rows))]
        return [
            Outcome(rows - duplicates - len(misfits), duplicates, misfits)
            for rows, (duplicates, misfits) in zip(self.rows, left_out, strict=True)
        ]

    def add_duplicates(self, rows: npt.NDArray[np.int64]) -> None:
        """Count rows that were known before, given by their places in the submit."""
        numbers, _ = self._placed(rows)
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            self.duplicates[int(number)] = self.duplicates.get(int(number), 0) + int(count)

    def add_misfits(self, rows: npt.NDArray[np.int64], letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Note rows that became dead letters, given by their places in the submit; return the letters to store."""
        numbers, places = (each.tolist() for each in self._placed(rows))
        for number, place, letter in zip(numbers, places, letters, strict=True):
            self.misfits.setdefault(number, {})[place] = letter.why
        return [self._letter_of(number, letter) for number, letter in zip(numbers, letters, strict=True)]

    def _placed(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the request's number for each row, and the row's place in it."""
        begins = np.cumsum([0, *self.rows])[:-1]
        # A request without rows begins where the next one does.
        numbers = begins.searchsorted(rows, side="right") - 1
        return numbers, rows - begins[numbers]


@dataclass(slots=True)
class Submit:
    """Hold one submit until it is answered."""

    batch: pa.RecordBatch
    keys: pa.Array | None
    #: Rows before which it may be cut, if keys are in several rows; None: anywhere.
    cuts: Sequence[int] | None
    nbytes: int
    #: A key without its scope, by the key.
    unscoped: Mapping[str, str] = field(default_factory=dict)
    requests: Requests | None = None
    #: The place of each row, in a submit of requests: rows may be left out.
    places: npt.NDArray[np.int64] | None = None
    future: Future[HandedOver] = field(default_factory=Future)
    #: Rows with the key of another one and other content, to be stored before it is answered.
    letters: list[DeadLetter] = field(default_factory=list)
    #: Rows that went into blocks, from the first on.
    taken: int = 0
    added: int = 0
    duplicates: int = 0

    @property
    def left(self) -> int:
        """Return how many of its rows are in no block yet."""
        return int(self.batch.num_rows) - self.taken

    @property
    def messages(self) -> int:
        """Return how many of its senders' messages wait for their answer: its requests, or its rows."""
        return int(self.batch.num_rows) if self.requests is None else len(self.requests.rows)

    def fitting(self, rows: int, nbytes: int) -> int:
        """Return how many of its rows are within these bounds."""
        found = min(self.left, rows)
        while found > 0 and self.batch.slice(self.taken, found).nbytes > nbytes:
            found //= 2
        return max(0, found)

    def cut_at(self, rows: int, *, at_least_one: bool) -> int:
        """Return how many rows to take: at most ``rows``, or more if no smaller cut has one."""
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
class KeyedPart:
    """Hold the rows of one submit in one block."""

    submit: Submit
    batch: pa.RecordBatch
    keys: pa.Array | None
    #: Whether the submit is answered with it.
    last: bool
    #: The place of each row in the submit, in a submit of requests.
    places: npt.NDArray[np.int64] | None = None

    def leave_out(self, known: set[str]) -> None:
        """Leave out the rows with these keys, and count them."""
        if self.keys is None:
            return
        keep = pc.invert(pc.is_in(self.keys, value_set=pa.array(sorted(known), pa.string())))
        before = self.batch.num_rows
        gone = self._keep(keep)
        if self.submit.requests is not None and gone is not None:
            self.submit.requests.add_duplicates(gone)
        self.submit.duplicates += before - self.batch.num_rows

    def take_repeats(self, seen: dict[str, object], content: str | None) -> list[DeadLetter]:
        """Leave out the rows whose keys came before, and count them; return instead those with other content.

        ``seen``: the contents of earlier rows by their keys; it gets those of these rows.
        """
        assert self.keys is not None
        contents = None if content is None else self.batch.column(content).cast(pa.large_binary())
        again, others = repeats(self.keys, contents, seen)
        odd = [] if contents is None else contents.filter(others).to_pylist()
        self.submit.duplicates += again.true_count - len(odd)
        self._keep(pc.invert(again))
        return [DeadLetter(DeadLetterReason.REPEATED_KEY, data or b"") for data in odd]

    def see(self, keys: pa.Array, content: str, seen: dict[str, object]) -> None:
        """Add the contents of its rows with these keys, the first of each."""
        if self.keys is not None:
            rows = pc.is_in(self.keys, value_set=keys)
            repeats(self.keys.filter(rows), self.batch.column(content).filter(rows).cast(pa.large_binary()), seen)

    def _keep(self, keep: pa.BooleanArray) -> npt.NDArray[np.int64] | None:
        """Keep these rows; return the places of the others, if places are known."""
        self.batch = self.batch.filter(keep)
        if self.keys is not None:
            self.keys = self.keys.filter(keep)
        if self.places is None:
            return None
        kept = keep.to_numpy(zero_copy_only=False)
        gone: npt.NDArray[np.int64] = self.places[~kept]
        self.places = self.places[kept]
        return gone

    def leave_out_invalid(self, invalid: npt.NDArray[np.bool_], letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Leave out rows that a block can't have, and count them; return their letters as they are to be stored."""
        gone = self._keep(pa.array(~invalid))
        requests = self.submit.requests
        if requests is None or gone is None:
            return letters
        return requests.add_misfits(gone, letters)

    def distinct_keys(self) -> set[str]:
        """Return the keys of its rows."""
        return set() if self.keys is None else {key for key in self.keys.to_pylist() if key is not None}


@dataclass(slots=True)
class KeyedBlock:
    """Hold parts that are stored together. Without rows, it is done as soon as the blocks before it are."""

    parts: list[KeyedPart]
    keys: set[str] = field(default_factory=set)
    rows: int = 0
    messages: int = 0
    #: The registrar's future; None if the block is still to be stored, or has no rows.
    future: Future[NewBlock] | None = None

    def leave_out(self, known: set[str]) -> None:
        """Leave out the rows with these keys."""
        gone = self.keys & known
        if gone:
            for part in self.parts:
                part.leave_out(gone)
            self.keys -= gone
            self.count()

    def leave_out_invalid(self, checked: CheckedRows) -> Sequence[DeadLetter]:
        """Leave out the rows that a block can't have, of those of ``joined``, and the keys that only they have.

        Return their dead letters.
        """
        assert checked.invalid is not None
        begin = 0
        letters: list[DeadLetter] = []
        for part in self.parts:
            invalid = checked.invalid[begin : begin + part.batch.num_rows]
            begin += part.batch.num_rows
            if count := int(invalid.sum()):
                letters += part.leave_out_invalid(invalid, checked.letters[len(letters) : len(letters) + count])
        self.keys &= {key for part in self.parts for key in part.distinct_keys()}
        self.count()
        return letters

    def joined(self) -> pa.RecordBatch:
        """Return its rows as one batch."""
        return pa.concat_batches([part.batch for part in self.parts if part.batch.num_rows])

    def count(self) -> None:
        """Count its rows again."""
        self.rows = sum(part.batch.num_rows for part in self.parts)

    @property
    def is_settled(self) -> bool:
        """Return whether it is registered or refused, or has no rows."""
        return not self.rows or (self.future is not None and self.future.done())


class SubmitQueue:
    """Hold submits until they are in blocks, and count what is not answered. Its owner's lock guards all of it.

    Args:
        most_in_flight: how many submits may be unanswered.
        most_bytes: how many bytes they may have.
        largest_block: bytes of a block, at most.
    """

    def __init__(self, *, most_in_flight: int, most_bytes: int, largest_block: int) -> None:
        self._most_in_flight = most_in_flight
        self._most_bytes = most_bytes
        self._largest_block = largest_block
        self._waiting: deque[Submit] = deque()
        #: Submits that are not answered.
        self.unanswered = 0
        self._unanswered_bytes = 0
        #: What is in no block yet.
        self.rows = 0
        self.nbytes = 0
        self.messages = 0

    def __bool__(self) -> bool:
        """Return whether a submit has rows in no block yet."""
        return bool(self._waiting)

    @property
    def fills_a_block(self) -> bool:
        """Return whether what waits makes a block of the largest size."""
        return self.nbytes >= self._largest_block

    def has_room(self, made: Submit) -> bool:
        """Return whether there is room; a submit larger than the limit goes alone."""
        return not self.unanswered or (
            self.unanswered < self._most_in_flight and self._unanswered_bytes + made.nbytes <= self._most_bytes
        )

    def add(self, made: Submit) -> None:
        """Take a submit."""
        self._waiting.append(made)
        self.unanswered += 1
        self._unanswered_bytes += made.nbytes
        self.rows += made.batch.num_rows
        self.nbytes += made.nbytes
        self.messages += made.messages

    def note_answered(self, answered: Sequence[Submit]) -> None:
        """Count submits no more, which are to be answered."""
        self.unanswered -= len(answered)
        self._unanswered_bytes -= sum(submit.nbytes for submit in answered)

    def parts(self, most: int) -> Iterator[KeyedPart]:
        """Yield parts of submits in order, at most ``most`` rows and a block's bytes, but at least one."""
        rows = nbytes = 0
        while self._waiting:
            submit = self._waiting[0]
            wanted = submit.fitting(most - rows, self._largest_block - nbytes)
            taken = submit.cut_at(wanted, at_least_one=rows == 0 and submit.left > 0)
            if not taken and submit.left:
                return
            batch = submit.batch.slice(submit.taken, taken)
            keys = None if submit.keys is None else submit.keys.slice(submit.taken, taken)
            places = None if submit.places is None else submit.places[submit.taken : submit.taken + taken]
            submit.taken += taken
            rows += taken
            nbytes += batch.nbytes
            self.rows -= taken
            if not submit.left:
                self._waiting.popleft()
                self.messages -= submit.messages
            # An estimate: slices do not add up to the size of the whole.
            self.nbytes = max(0, self.nbytes - batch.nbytes) if self._waiting else 0
            yield KeyedPart(submit, batch, keys, not submit.left, places)

    def clear(self) -> list[Submit]:
        """Count nothing any more; return the submits with rows in no block."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self.unanswered = self._unanswered_bytes = self.rows = self.nbytes = self.messages = 0
        return waiting


def submit_of(
    batch: pa.RecordBatch,
    keys: pa.StringArray | Sequence[str | None] | None,
    *,
    rows_share_keys: bool,
    content: str | None = None,
) -> Submit:
    """Return a submit of a batch of the receiver's columns; ``content`` is the one that a key belongs to.

    Raises ValueError if there are not as many keys as rows.
    """
    if keys is None:
        return Submit(batch, None, None, batch.nbytes)
    taken = storable(keys)
    if len(taken) != batch.num_rows:
        raise ValueError(f"{len(taken)} keys for {batch.num_rows} rows: give one for each row, null for none")
    if are_distinct(taken):
        return Submit(batch, taken, None, batch.nbytes)
    if rows_share_keys:
        return Submit(batch, taken, cuts(taken), batch.nbytes)
    made = Submit(batch, taken, None, batch.nbytes)
    whole = KeyedPart(made, batch, taken, last=True)
    made.letters = whole.take_repeats({}, content)
    made.batch, made.keys, made.nbytes = whole.batch, whole.keys, whole.batch.nbytes
    return made
