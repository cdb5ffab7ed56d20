"""Join lines that come from several streams at a time, and hold each stream's open record until it is complete.

Owns the open records, as some batches, and their bounds: time, lines, bytes, and how many there are. No Python object
per line or record. New lines cost what they and the records that they may belong to have in bytes, whatever else is
open. It must never read a clock, and knows no socket.
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
# What is open is copied to one batch when it is in more batches, or more bytes than twice those of then and these:
# so a byte is copied a few times, and records that are complete take no more memory than those that were open.
_MOST_BATCHES = 64
_SPARE_BYTES = 4 * 2**20
# Of an open record: the number of its first line, where it is, its lines, its bytes (see `max_bytes`), when it began.
_OPEN = np.dtype([(name, np.int64) for name in ("number", "batch", "row", "lines", "nbytes")] + [("since", np.float64)])


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
        self._none: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=schema)
        # The open records, with rows that are no more open, and how many bytes they have and may have.
        self._batches: list[pa.RecordBatch] = []
        self._nbytes, self._most_nbytes = 0, _SPARE_BYTES
        #: What is known of each open record, and its key; the one that began first is at the top.
        self._open: npt.NDArray[np.void] = np.zeros(0, dtype=_OPEN)
        self._keys: pa.StringArray = pa.array([], pa.string())
        self._count = 0

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
        goes_on = pc.is_in(self._keys, value_set=keys).to_numpy(zero_copy_only=False)
        is_first = np.ones(np.count_nonzero(goes_on) + lines.num_rows, dtype=bool)
        is_first[-lines.num_rows :] = self._joiner.begins(pc.fill_null(lines.column(self._text), ""))
        if breaks is not None:
            is_first[breaks - lines.num_rows] = True
        rows = pa.concat_batches([self._rows(self._open[goes_on]), lines])
        names = pa.concat_arrays([self._keys.filter(pa.array(goes_on)), keys])
        known = np.concatenate([self._open[goes_on], self._new(lines.num_rows, now)])
        ids = names.dictionary_encode().indices.to_numpy()
        # By key; the sort keeps the order within one, so that an open record comes before its new lines.
        order = np.argsort(ids, kind="stable")
        is_first = is_first[order]
        is_first[0] = True
        is_first[1:] |= ids[order][1:] != ids[order][:-1]
        rows = _taken(rows, order)
        counts = known["lines"][order]
        firsts = self._joiner.limits.firsts(np.flatnonzero(is_first), self._sizes(rows), counts)
        records, places = self._join(rows, firsts), order[firsts]
        is_open = np.ones(firsts.size, dtype=bool)
        is_open[:-1] = ids[places][1:] != ids[places][:-1]
        found = known[places]
        found["lines"] = np.add.reduceat(counts, firsts)
        found["nbytes"] = self._sizes(records)
        found["batch"], found["row"] = len(self._batches), np.arange(firsts.size)
        self._batches.append(records)
        opens = np.concatenate([self._open[~goes_on], found])
        by_age = np.argsort(opens["number"])
        is_open = np.concatenate([np.ones(opens.size - firsts.size, dtype=bool), is_open])[by_age]
        names = pa.concat_arrays([self._keys.filter(pa.array(~goes_on)), names.take(pa.array(places))])
        self._open, self._keys = opens[by_age], names.take(pa.array(by_age))
        complete = self._take(~is_open | self._is_too_much(is_open))
        self._drop_complete()
        return complete

    def overdue(self, now: float) -> pa.RecordBatch:
        """Return the records that have waited for as long as they may."""
        return self._take(now - self._open["since"] >= self._timeout)

    def until_overdue(self, now: float) -> float | None:
        """Return after how many seconds a record has waited for as long as it may; None: there is none."""
        since = self._open["since"]
        return max(0.0, float(since.min()) + self._timeout - now) if since.size else None

    def end(self, streams: pa.StringArray) -> pa.RecordBatch:
        """Return the open records of keys that begin with one of these, up to a NUL: no more lines belong to them."""
        found = pc.list_element(pc.split_pattern(self._keys, "\0", max_splits=1), 0)
        return self._take(pc.is_in(found, value_set=streams).to_numpy(zero_copy_only=False))

    def end_all(self) -> pa.RecordBatch:
        """Return all open records."""
        return self._take(np.ones(self._open.size, dtype=bool))

    def _new(self, lines: int, now: float) -> npt.NDArray[np.void]:
        """Return what is known of new lines."""
        new = np.zeros(lines, dtype=_OPEN)
        new["number"] = np.arange(self._count, self._count + lines)
        new["lines"], new["since"] = 1, now
        self._count += lines
        return new

    def _rows(self, records: npt.NDArray[np.void]) -> pa.RecordBatch:
        """Return these records, in their order."""
        places = np.unique(records["batch"])
        found = [(records["batch"] == place, self._batches[place]) for place in places.tolist()]
        parts = [batch.take(pa.array(records["row"][is_there])) for is_there, batch in found]
        if len(parts) <= 1:
            return parts[0] if parts else self._none
        return _taken(pa.concat_batches(parts), np.argsort(np.argsort(records["batch"], kind="stable")))

    def _take(self, taken: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        if not taken.any():
            return self._none
        found = self._rows(self._open[taken])
        self._open, self._keys = self._open[~taken], self._keys.filter(pa.array(~taken))
        if not self._open.size:
            self._batches.clear()
            self._nbytes, self._most_nbytes = 0, _SPARE_BYTES
        return found

    def _drop_complete(self) -> None:
        """Let go of the rows of the last batch that are not open; and of all such rows, where they are many."""
        if not self._batches:
            return
        last = len(self._batches) - 1
        is_there = self._open["batch"] == last
        self._batches[last] = self._rows(self._open[is_there])
        self._open["row"][is_there] = np.arange(np.count_nonzero(is_there))
        self._nbytes += self._batches[last].nbytes
        if last >= _MOST_BATCHES or self._nbytes > self._most_nbytes:
            self._batches = [self._rows(self._open)]
            self._open["batch"], self._open["row"] = 0, np.arange(self._open.size)
            self._nbytes = self._batches[0].nbytes
            self._most_nbytes = 2 * self._nbytes + _SPARE_BYTES

    def _is_too_much(self, is_open: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which open records are complete because there are too many: those that began first."""
        # Count from the newest one.
        numbers = np.cumsum(is_open[::-1])[::-1]
        nbytes = np.cumsum((self._open["nbytes"] * is_open)[::-1])[::-1]
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
