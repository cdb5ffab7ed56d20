"""Join lines that come from several streams at a time, and hold each stream's open record until it is complete.

Owns the open records, as one batch, and their bounds: time, lines, bytes, and how many there are. No Python object per
line or record. It must never read a clock, and knows no socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.record_formats.joined_lines import LineJoiner, sizes_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver_runtime.record_formats.joined_lines import Indexes, Sizes
    from receiver_runtime.sources.fields.multiline import Multiline

# Senders choose how many streams there are: beyond these bounds the records that are open for longest are complete.
MOST_OPEN = 10_000
MOST_OPEN_BYTES = 32 * 2**20


class KeyedJoins:
    """Join lines by key. For one thread.

    Args:
        schema: of the lines, and of the records.
        text: the column of text that is joined, and compared with the pattern.
        max_bytes: the most bytes of a record of several lines, in its largest column that is joined.
        raw: a binary column that is joined too. The other columns are those of a record's first line.

    Raises ValueError: the pattern is not RE2's.
    """

    def __init__(
        self,
        multiline: Multiline,
        max_bytes: int,
        schema: pa.Schema,
        text: str,
        *,
        raw: str | None = None,
        most_open: int = MOST_OPEN,
        most_open_bytes: int = MOST_OPEN_BYTES,
    ) -> None:
        self._joiner = LineJoiner(multiline, max_bytes)
        self._timeout = multiline.timeout
        self._text = schema.get_field_index(text)
        self._joined = [self._text] if raw is None else [self._text, schema.get_field_index(raw)]
        self._most_open, self._most_open_bytes = most_open, most_open_bytes
        #: The open records, the one that began first at the top; for each its key, its lines, and when it began.
        self._open: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=schema)
        self._keys: pa.StringArray = pa.array([], pa.string())
        self._lines: Sizes = np.zeros(0, dtype=np.int64)
        self._since: npt.NDArray[np.float64] = np.zeros(0)

    def add(
        self, lines: pa.RecordBatch, keys: pa.StringArray, now: float, breaks: Indexes | None = None
    ) -> pa.RecordBatch:
        """Add lines; return the records that are complete now, in the order in which they began.

        Args:
            lines: of any keys, those of one key in their order.
            keys: of each line.
            now: seconds on a monotonic clock.
            breaks: lines that begin a record whatever they are.
        """
        if not lines.num_rows:
            return lines
        held = self._open.num_rows
        is_first = np.ones(held + lines.num_rows, dtype=bool)
        is_first[held:] = self._joiner.begins(pc.fill_null(lines.column(self._text), ""))
        if breaks is not None:
            is_first[breaks + held] = True
        rows = pa.concat_batches([self._open, lines])
        names = pa.concat_arrays([self._keys, keys])
        ids = names.dictionary_encode().indices.to_numpy()
        # By key; the sort keeps the order within one, so that an open record comes before its new lines.
        order = np.argsort(ids, kind="stable")
        is_first = is_first[order]
        is_first[0] = True
        is_first[1:] |= ids[order][1:] != ids[order][:-1]
        rows = _taken(rows, order)
        counts = np.concatenate([self._lines, np.ones(lines.num_rows, dtype=np.int64)])[order]
        firsts = self._joiner.limits.firsts(np.flatnonzero(is_first), self._sizes(rows), counts)
        records, places = self._join(rows, firsts), order[firsts]
        is_open = np.ones(firsts.size, dtype=bool)
        is_open[:-1] = ids[places][1:] != ids[places][:-1]
        by_age = np.argsort(places, kind="stable")
        self._open = _taken(records, by_age)
        self._keys = names.take(pa.array(places[by_age]))
        self._lines = np.add.reduceat(counts, firsts)[by_age]
        self._since = np.concatenate([self._since, np.full(lines.num_rows, now)])[places][by_age]
        return self._take(~is_open[by_age] | self._is_too_much(is_open[by_age]))

    def overdue(self, now: float) -> pa.RecordBatch:
        """Return the records that have waited for as long as they may."""
        return self._take(now - self._since >= self._timeout)

    def until_overdue(self, now: float) -> float | None:
        """Return after how many seconds a record has waited for as long as it may; None: there is none."""
        return max(0.0, float(self._since.min()) + self._timeout - now) if self._since.size else None

    def end(self, streams: pa.StringArray) -> pa.RecordBatch:
        """Return the open records of keys that begin with one of these, up to a NUL: no more lines belong to them."""
        found = pc.list_element(pc.split_pattern(self._keys, "\0", max_splits=1), 0)
        return self._take(pc.is_in(found, value_set=streams).to_numpy(zero_copy_only=False))

    def end_all(self) -> pa.RecordBatch:
        """Return all open records."""
        return self._take(np.ones(self._since.size, dtype=bool))

    def _take(self, taken: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        if not taken.any():
            return self._open.slice(0, 0)
        found, kept = self._open.filter(pa.array(taken)), pa.array(~taken)
        self._open, self._keys = self._open.filter(kept), self._keys.filter(kept)
        self._lines, self._since = self._lines[~taken], self._since[~taken]
        return found

    def _is_too_much(self, is_open: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which open records are complete because there are too many: those that began first."""
        # Count from the newest one.
        numbers = np.cumsum(is_open[::-1])[::-1]
        nbytes = np.cumsum((self._sizes(self._open) * is_open)[::-1])[::-1]
        too_much: npt.NDArray[np.bool_] = (numbers > self._most_open) | (nbytes > self._most_open_bytes)
        return too_much

    def _sizes(self, rows: pa.RecordBatch) -> Sizes:
        sizes: Sizes = np.max([sizes_of(pc.fill_null(rows.column(place), b"")) for place in self._joined], axis=0)
        return sizes

    def _join(self, rows: pa.RecordBatch, firsts: Indexes) -> pa.RecordBatch:
        """Return the records that begin at these lines."""
        if firsts.size == rows.num_rows:
            return rows
        records = rows.take(pa.array(firsts))
        columns = records.columns
        ends = np.append(firsts, rows.num_rows)
        is_single = pa.array(np.diff(ends) == 1)
        offsets = pa.array(ends, pa.int32())
        for place in self._joined:
            column = rows.column(place)
            texts = pc.fill_null(column, pa.scalar(b"").cast(column.type))
            joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), pa.scalar(b"\n").cast(column.type))
            # A record of one line stays as it is, also null.
            columns[place] = pc.if_else(is_single, columns[place], joined)
        return pa.RecordBatch.from_arrays(columns, schema=records.schema)


def _taken(rows: pa.RecordBatch, order: Indexes) -> pa.RecordBatch:
    """Return rows in another order, without a copy where it is theirs."""
    return rows if (order[1:] > order[:-1]).all() else rows.take(pa.array(order))
