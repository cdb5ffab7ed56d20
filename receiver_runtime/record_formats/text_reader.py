"""Read records whose values are text: cut them by vector code, then turn each column into its type at once.

A subclass says where the values of a record are. All steps look at each record by itself, so a bad one never changes
what is made of the others; none makes a Python object of a record that fits.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader
from receiver_runtime.record_formats.text_values import refusal, typed
from receiver_runtime.record_formats.time_format import TimeFormat
from receiver_runtime.sources.fields.text_encoding import UTF8_MARK
from receiver_runtime.sources.records.text_records import TextRecords

if TYPE_CHECKING:
    from collections.abc import Iterable

    from receiver_runtime.sources.records.declared import Records

    Places = np.ndarray[tuple[int], np.dtype[np.int64]]
    Rows = np.ndarray[tuple[int], np.dtype[np.bool_]]

# Records of one step: its arrays fit into a processor's cache.
_PIECE = 8192
_LINE_ENDS = (ord("\n"), ord("\r"))
_NO_ASCII = 0x80


@dataclass(slots=True)
class Lines:
    """Hold records as they lie in memory: each is ``octets`` from its start to its end; and the faults found so far.

    ``blank``: the rows whose record is null, or has a fault.
    """

    data: pa.Buffer
    octets: np.ndarray[tuple[int], np.dtype[np.uint8]]
    starts: Places
    ends: Places
    blank: Rows
    faults: dict[int, Fault] = field(default_factory=dict)

    def refuse(self, rows: Iterable[int], reason: DeadLetterReason, why: str) -> None:
        """Say of rows that they do not fit, unless something was said of them before."""
        for row in rows:
            self.faults.setdefault(int(row), Fault(int(row), reason, why))
            self.blank[row] = True

    def spans(self, starts: Places, stops: Places, there: Rows | None = None) -> pa.StringArray:
        """Return parts of the text in order, each from its start to its stop; null where not ``there``."""
        count = len(starts)
        edges = np.empty(2 * count, dtype=np.int32)
        edges[0::2], edges[1::2] = starts, stops
        both = pa.StringArray.from_buffers(max(0, 2 * count - 1), pa.py_buffer(edges), self.data, null_count=0)
        return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=None if there is None else ~there))

    def texts(self) -> pa.StringArray:
        """Return the records; null for those that are blank."""
        return self.spans(self.starts, self.ends, ~self.blank)


class TextReader(RecordReader):
    """Read records whose values are text; see the module. Safe from any thread."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        assert isinstance(records, TextRecords)
        self.schema = arrow_schema(records.columns)
        self._formats = {
            name: TimeFormat(text, self.schema.field(name).type) for name, text in dict(records.times).items()
        }

    @abstractmethod
    def columns(self, lines: Lines) -> list[pa.StringArray]:
        """Return the values of each column as text; null where a record has none, or is blank."""

    def read(self, values: pa.BinaryArray) -> Parsed:
        """Parse records; a null is one without any value, which lacks no required one."""
        pieces = [self._piece(values.slice(first, _PIECE)) for first in range(0, max(1, len(values)), _PIECE)]
        if len(pieces) == 1:
            return pieces[0]
        faults = [
            Fault(number * _PIECE + fault.row, fault.reason, fault.why)
            for number, piece in enumerate(pieces)
            for fault in piece.faults
        ]
        return Parsed(pa.concat_batches([piece.batch for piece in pieces]), faults)

    def _piece(self, values: pa.BinaryArray) -> Parsed:
        lines = _lines(values)
        may_lack = lines.blank.copy()
        _refuse_other_text(lines)
        arrays = [
            self._typed(lines, field, column) for field, column in zip(self.schema, self.columns(lines), strict=True)
        ]
        for name in self.records.required:
            lacking = arrays[self.schema.get_field_index(name)].is_null().to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(lacking & ~may_lack).tolist()
            lines.refuse(rows, DeadLetterReason.DOES_NOT_FIT, f"it is missing or empty - at `{name}`")
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if not lines.faults:
            return Parsed(batch)
        fits = np.ones(len(values), dtype=np.bool_)
        fits[list(lines.faults)] = False
        return Parsed(batch.filter(pa.array(fits)), [lines.faults[row] for row in sorted(lines.faults)])

    def _typed(self, lines: Lines, field: pa.Field, column: pa.StringArray) -> pa.Array:
        """Return a column as its type."""
        if field.name in self._formats:
            array, odd = self._formats[field.name].read(column)
            rows = np.flatnonzero(odd)
            texts = column.take(pa.array(rows)).to_pylist()
            found = {row: refusal(text, field.type) for row, text in zip(rows.tolist(), texts, strict=True)}
        elif pa.types.is_string(field.type):
            return column
        else:
            array, found = typed(column, field.type)
        for row, why in found.items():
            lines.refuse([row], DeadLetterReason.DOES_NOT_FIT, f"{why} - at `{field.name}`")
        return array


def not_empty(column: pa.StringArray) -> pa.StringArray:
    """Return a column with null for each text that is empty."""
    return pc.if_else(pc.greater(pc.binary_length(column), 0), column, pa.scalar(None, pa.string()))


def behind_marks(octets: np.ndarray[tuple[int], np.dtype[np.uint8]], starts: Places, ends: Places) -> Places:
    """Return where texts begin behind their byte-order marks of UTF-8, which belong to no text."""
    last = max(0, octets.size - 1)
    if not octets.size or not (octets[np.minimum(starts, last)] == UTF8_MARK[0]).any():
        return starts
    is_marked = ends - starts >= len(UTF8_MARK)
    for place, octet in enumerate(UTF8_MARK):
        is_marked &= octets[np.minimum(starts + place, last)] == octet
    return starts + len(UTF8_MARK) * is_marked


def _lines(values: pa.BinaryArray) -> Lines:
    """Return records as they lie in memory, without the marks at their beginnings and the line ends at their ends."""
    blank = values.is_null().to_numpy(zero_copy_only=False)
    _, offsets, data = values.buffers()
    if data is None:
        data = pa.py_buffer(b"")
    places = np.zeros(1, np.int32)
    if len(values):
        places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    data = data.slice(int(places[0]), int(places[-1] - places[0]))
    edges = places.astype(np.int64) - int(places[0])
    octets = np.frombuffer(data, np.uint8)
    starts, ends = edges[:-1], edges[1:].copy()
    if octets.size:
        # A null may have bytes behind it.
        ends[blank] = starts[blank]
        for end in _LINE_ENDS:
            ends -= (ends > starts) & (octets[ends - 1] == end)
    return Lines(data, octets, behind_marks(octets, starts, ends), ends, blank.copy())


def _refuse_other_text(lines: Lines) -> None:
    """Refuse the records that are not UTF-8."""
    try:
        # Arrow looks at each by itself: a character that two records share is in neither.
        lines.texts().validate(full=True)
    except pa.ArrowInvalid:
        for row in np.flatnonzero(~lines.blank).tolist():
            text = lines.octets[lines.starts[row] : lines.ends[row]]
            if (text >= _NO_ASCII).any():
                try:
                    text.tobytes().decode()
                except UnicodeDecodeError as error:
                    lines.refuse([row], DeadLetterReason.UNPARSABLE, f"no UTF-8 at byte {error.start}")
