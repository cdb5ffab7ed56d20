"""Read records of CSV: find separators and quotes of all records at once, by vector code.

Quotes are counted within each record, so one that is not closed ends with its record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_contrib.csv_records.declaration import Csv
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.text_reader import Lines, TextReader

if TYPE_CHECKING:
    from receiver_runtime.sources.records.declared import Records

    Places = np.ndarray[tuple[int], np.dtype[np.int64]]


class CsvReader(TextReader):
    """Read records of CSV; see the module. Safe from any thread."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        assert isinstance(records, Csv)
        self._separator = ord(records.separator)
        self._quote = ord(records.quote) if records.quote else None
        self._quote_text = records.quote

    def columns(self, lines: Lines) -> list[pa.StringArray]:
        """Return the fields by their columns."""
        separators = np.flatnonzero(lines.octets == self._separator)
        quotes = np.zeros(0, np.int64)
        if self._quote is not None:
            quotes = np.flatnonzero(lines.octets == self._quote)
        if quotes.size:
            self._refuse_quotes(lines, quotes)
            separators = _outside(lines, separators, quotes)
        count = len(self.schema)
        firsts = np.searchsorted(separators, lines.starts)
        found = np.searchsorted(separators, lines.ends) - firsts + 1
        for row in np.flatnonzero((found != count) & ~lines.blank).tolist():
            why = f"{found[row]} fields, where {count} columns are declared"
            lines.refuse([row], DeadLetterReason.DOES_NOT_FIT, why)
        there = ~lines.blank
        rows = np.flatnonzero(there)
        made = []
        begins = lines.starts
        for number, field in enumerate(self.schema):
            stops = lines.ends.copy()
            stops[~there] = lines.starts[~there]
            if number < count - 1:
                stops[rows] = separators[firsts[rows] + number]
            made.append(self._field(lines, begins, stops, is_text=pa.types.is_string(field.type)))
            begins = np.where(there, stops + 1, lines.starts)
        return made

    def _field(self, lines: Lines, begins: Places, stops: Places, *, is_text: bool) -> pa.StringArray:
        there = ~lines.blank & (stops > begins)
        if self._quote is None or not lines.octets.size:
            return lines.spans(begins, stops, there)
        quoted = there & (lines.octets[np.minimum(begins, lines.octets.size - 1)] == self._quote)
        if not quoted.any():
            return lines.spans(begins, stops, there)
        begins, stops = begins + quoted, stops - quoted
        if not is_text:
            # Nothing in quotes is a value of no other type.
            there &= stops > begins
        column = lines.spans(begins, stops, there)
        return pc.replace_substring(column, self._quote_text * 2, self._quote_text)

    def _refuse_quotes(self, lines: Lines, quotes: Places) -> None:
        """Refuse records with a quote that is not closed, or stands where none may."""
        rows = np.searchsorted(lines.starts, quotes, side="right") - 1
        # A null, or the line end of a record, has none of them.
        inside = quotes < lines.ends[rows]
        quotes, rows = quotes[inside], rows[inside]
        if not quotes.size:
            return
        opens = (np.arange(quotes.size) - np.searchsorted(quotes, lines.starts)[rows]) % 2 == 0
        last = lines.octets.size - 1
        before, after = lines.octets[np.maximum(quotes - 1, 0)], lines.octets[np.minimum(quotes + 1, last)]
        opens_well = (quotes == lines.starts[rows]) | (before == self._separator) | (before == self._quote)
        closes_well = (quotes + 1 == lines.ends[rows]) | (after == self._separator) | (after == self._quote)
        odd = np.flatnonzero(np.bincount(rows, minlength=len(lines.starts)) % 2)
        lines.refuse(odd.tolist(), DeadLetterReason.UNPARSABLE, "a quote is not closed")
        bad = np.unique(rows[np.where(opens, ~opens_well, ~closes_well)])
        lines.refuse(bad.tolist(), DeadLetterReason.UNPARSABLE, "a quote stands where none may")


def _outside(lines: Lines, separators: Places, quotes: Places) -> Places:
    """Return the separators that are not in quotes."""
    rows = np.searchsorted(lines.starts, separators, side="right") - 1
    before = np.searchsorted(quotes, separators) - np.searchsorted(quotes, lines.starts)[rows]
    found: Places = separators[before % 2 == 0]
    return found
