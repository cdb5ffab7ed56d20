"""Parse JSON objects into typed columns by Arrow's parser, which makes no Python object of a record.

Arrow reads many records at once, and fails as a whole where one does not fit, without saying which. So where it fails,
a second parser (msgspec) looks at each record of the piece that fails, and says which do not fit and why; Arrow reads
the others again. What Arrow still refuses is found by a closer look, then by halving. So all values are Arrow's, and a
record is taken by itself alone, whatever records stand beside it: for that, the second parser must take all that Arrow
takes, and the closer look must refuse nothing that Arrow takes.

Halving costs many calls for each record that is refused. So what a sender could send at will, such as a member twice,
is found before (``Judge.refusal_of``), and only what is rare is left to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.flat_objects import FlatObjects
from receiver_runtime.record_formats.json_judge import Judge, has_decimals, may_crash, read_type
from receiver_runtime.record_formats.json_rewriting import NotWrittenError, Rewriter, has_maps
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader
from receiver_runtime.record_formats.text_values import typed
from receiver_runtime.sources.fields.text_encoding import UTF8_MARK
from receiver_runtime.sources.records.json_records import JsonObjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from receiver_runtime.sources.records.declared import Records

    Places = np.ndarray[tuple[int], np.dtype[np.int64]]

_EMPTY = b"{}"
_OPENING, _CLOSING = b"{}"
# Records of a piece that is read again by itself after the whole was refused.
_PIECE = 1024
_NO_ASCII = 0x80
# Fewer records are read by Arrow alone.
_LEAST_ALIKE = 1024
_BLANKS = b" \t\r\n"


class JsonReader(RecordReader):
    """Read JSON objects; see the module."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.schema = arrow_schema(records.columns)
        self._read_as = pa.schema([(field.name, read_type(field.type)) for field in self.schema])
        closed = isinstance(records, JsonObjects) and records.closed
        coerce = records.coerce if isinstance(records, JsonObjects) else ()
        others = "error" if closed else "ignore"
        self._options = pj.ParseOptions(explicit_schema=self._read_as, unexpected_field_behavior=others)
        self._flat = FlatObjects(self._read_as, closed=closed)
        self._judge = Judge(self.schema, closed=closed)
        self._has_decimals = any(has_decimals(field.type) for field in self.schema)
        self._has_maps = any(has_maps(field.type) for field in self.schema)
        self._rewriter = Rewriter(self.schema, coerce) if self._has_maps or coerce else None

    def read(self, values: pa.BinaryArray) -> Parsed:
        """See ``RecordReader``."""
        if self._has_maps:
            return self._rewritten(values)
        parsed = self._strict(values)
        if self._rewriter is None or not parsed.faults:
            return parsed
        faulty = np.array([fault.row for fault in parsed.faults])
        others = np.delete(np.arange(len(values)), faulty)
        return _together((others, Parsed(parsed.batch)), (faulty, self._rewritten(values.take(pa.array(faulty)))))

    def _rewritten(self, values: pa.BinaryArray) -> Parsed:
        """Return the records by the strict reader, each written again before."""
        assert self._rewriter is not None
        faults: list[Fault] = []
        rows: list[int] = []
        texts: list[bytes] = []
        for row, record in enumerate(values.to_pylist()):
            try:
                texts.append(self._rewriter.rewritten(_stripped(record)))
                rows.append(row)
            except NotWrittenError as error:
                faults.append(Fault(row, error.reason, str(error)))
        parsed = self._strict(pa.array(texts, pa.binary()))
        faults += [Fault(rows[fault.row], fault.reason, fault.why) for fault in parsed.faults]
        return Parsed(parsed.batch, sorted(faults, key=lambda fault: fault.row))

    def _strict(self, values: pa.BinaryArray) -> Parsed:
        """Return the records that fit as they are, and the faults of the others."""
        if len(values) < _LEAST_ALIKE or not _are_in_braces(values) or (found := self._flat.read(values)) is None:
            return self._by_arrow(values)
        members, are_alike = found
        parsed = self._fitting(members)
        if len(others := np.flatnonzero(~are_alike)):
            by_arrow = self._by_arrow(values.take(pa.array(others)))
            parsed = _together((np.flatnonzero(are_alike), parsed), (others, by_arrow))
        return parsed

    def _by_arrow(self, values: pa.BinaryArray) -> Parsed:
        """Return the records that fit, by Arrow's parser, and the faults of the others."""
        if (parsed := self._at_once(values)) is not None:
            return parsed
        batches: list[pa.RecordBatch] = []
        faults: list[Fault] = []
        for first in range(0, len(values), _PIECE):
            piece = values.slice(first, _PIECE)
            parsed = self._at_once(piece) or self._one_by_one(piece)
            batches.append(parsed.batch)
            faults += [Fault(first + fault.row, fault.reason, fault.why) for fault in parsed.faults]
        return Parsed(pa.concat_batches(batches), faults)

    def _at_once(self, values: pa.BinaryArray, *, judged: bool = False) -> Parsed | None:
        """Return the records by one call of Arrow's parser; None if it fails for one of them.

        ``judged``: the judge has looked at each record.
        """
        members = self._members(values, judged=judged)
        return None if members is None else self._fitting(members)

    def _fitting(self, members: pa.RecordBatch) -> Parsed:
        """Return the records whose members fit their columns, and the faults of the others."""
        faults: dict[int, str] = {}
        arrays = []
        for field, column in zip(self.schema, members.columns, strict=True):
            array = column
            if column.type != field.type:
                array, found = typed(column, field.type)
                faults |= {row: f"{why} - at `$.{field.name}`" for row, why in found.items() if row not in faults}
            if field.name in self.records.required and column.null_count:
                lacking = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()
                faults |= dict.fromkeys(lacking, f"the value is missing or null - at `$.{field.name}`")
            faults |= dict.fromkeys(_no_numbers(column).tolist(), f"Number out of range - at `$.{field.name}`")
            arrays.append(array)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if not faults:
            return Parsed(batch)
        fits = np.ones(batch.num_rows, dtype=np.bool_)
        fits[list(faults)] = False
        return Parsed(
            batch.filter(pa.array(fits)),
            [Fault(row, DeadLetterReason.DOES_NOT_FIT, faults[row]) for row in sorted(faults)],
        )

    def _members(self, values: pa.BinaryArray, *, judged: bool) -> pa.RecordBatch | None:
        """Return the members of the records as Arrow's parser gives them; None if it is not one object for each.

        Arrow's parser does not know where a record ends. But it refuses a line end within a string, whatever stands
        before it, also behind a backslash. So if it takes the text, the line end between two records is within no
        string: the closing brace before it and the opening one after it are tokens, not text. In JSON, these follow one
        another only at the top level, so each record begins and ends there. So each has at least one object, and if
        there are as many objects as records, each has exactly one. That depends neither on what is in strings, nor on
        what Arrow takes beside JSON: NaN and Inf have no line end, and a NUL outside a string is refused.
        """
        if not len(values):
            return _no_rows(self._read_as)
        if not _are_in_braces(values):
            return None
        text = _lines(values)
        if self._has_decimals and not judged and may_crash(text.to_pybytes()):
            return None
        try:
            # Arrow does not look at the bytes of strings.
            if np.frombuffer(text, np.uint8).max() >= _NO_ASCII:
                text.to_pybytes().decode()
            members = self._parsed(text)
        except (UnicodeDecodeError, pa.ArrowInvalid):
            return None
        return members if members.num_rows == len(values) else None

    def _parsed(self, text: pa.Buffer) -> pa.RecordBatch:
        """Return the members of the objects in a text, in Arrow's own memory. Raises ArrowInvalid.

        A thread of Arrow may let go of the text when the process ends. If it were Python's, that would need the
        interpreter, which is gone then: the process would be aborted.
        """
        options = pj.ReadOptions(use_threads=False, block_size=text.size + 1)
        # Half of what `read_json` costs for a few records.
        with pj.open_json(pa.BufferReader(text), read_options=options, parse_options=self._options) as reader:
            return reader.read_next_batch()

    def _one_by_one(self, values: pa.BinaryArray) -> Parsed:
        """Return the records that fit, and the faults of the others."""
        records = dict(enumerate(map(_stripped, values.to_pylist())))
        faults: list[Fault] = []
        for fault_of in (self._judge.fault_of, self._judge.refusal_of):
            found = [fault for row, record in records.items() if (fault := fault_of(row, record)) is not None]
            faults += found
            for fault in found:
                del records[fault.row]
            if (parsed := self._judged(records)) is not None:
                return Parsed(parsed.batch, _by_row([*faults, *parsed.faults]))
        parsed = self._halved(records)
        return Parsed(parsed.batch, _by_row([*faults, *parsed.faults]))

    def _judged(self, records: Mapping[int, bytes]) -> Parsed | None:
        """Return records, given by their rows, by one call of Arrow's parser; None if it fails for one of them."""
        rows = list(records)
        parsed = self._at_once(pa.array(list(records.values()), pa.binary()), judged=True)
        if parsed is None:
            return None
        return Parsed(parsed.batch, [Fault(rows[fault.row], fault.reason, fault.why) for fault in parsed.faults])

    def _halved(self, records: Mapping[int, bytes]) -> Parsed:
        """Return the records that Arrow takes, and the faults of the others; each of these costs many calls."""
        batches: list[pa.RecordBatch] = []
        faults: list[Fault] = []
        pending = [list(records)]
        while pending:
            rows = pending.pop()
            if (parsed := self._judged({row: records[row] for row in rows})) is not None:
                batches.append(parsed.batch)
                faults += parsed.faults
            elif len(rows) == 1:
                faults.append(Fault(rows[0], DeadLetterReason.DOES_NOT_FIT, self._why(records[rows[0]])))
            else:
                half = len(rows) // 2
                # The last one is read first.
                pending += [rows[half:], rows[:half]]
        return Parsed(pa.concat_batches(batches) if batches else _no_rows(self.schema), faults)

    def _why(self, record: bytes) -> str:
        """Return why Arrow refuses one record."""
        try:
            self._parsed(pa.array([record], pa.binary())[0].as_buffer())
        except pa.ArrowInvalid as error:
            return str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")
        return "it is not one JSON object"


def _stripped(record: bytes) -> bytes:
    return record.removeprefix(UTF8_MARK).strip(_BLANKS)


def _are_in_braces(values: pa.BinaryArray) -> bool:
    """Return whether each record begins and ends with a brace."""
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    if np.diff(places).min() < len(_EMPTY):
        return False
    text = np.frombuffer(data, np.uint8)
    return bool((text[places[:-1]] == _OPENING).all() and (text[places[1:] - 1] == _CLOSING).all())


def _lines(values: pa.BinaryArray) -> pa.Buffer:
    """Return the records' bytes, one record after another, with a line end between two."""
    one = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(one, b"\n")[0].as_buffer()


def _no_numbers(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rows with a floating-point number that is not finite, also inside other values."""
    kind, found = array.type, np.array([], np.int64)
    if pa.types.is_floating(kind):
        if pc.all(pc.is_finite(array)).as_py() is False:
            finite = pc.fill_null(pc.is_finite(array), True)  # noqa: FBT003  Arrow's
            found = np.flatnonzero(~finite.to_numpy(zero_copy_only=False))
    elif pa.types.is_list(kind):
        if len(inner := _no_numbers(array.flatten())):
            found = pc.list_parent_indices(array).to_numpy()[inner]
    elif pa.types.is_struct(kind):
        found = np.concatenate([found, *(_no_numbers(part) for part in array.flatten())])
    return found


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _together(*parts: tuple[Places, Parsed]) -> Parsed:
    """Return records that were read apart, in order. A part has the rows of its records and faults among all."""
    fitting = [np.delete(rows, [fault.row for fault in parsed.faults]) for rows, parsed in parts]
    order = np.argsort(np.concatenate(fitting))
    batch = pa.concat_batches([parsed.batch for _, parsed in parts]).take(pa.array(order))
    return Parsed(
        batch,
        _by_row(
            Fault(int(rows[fault.row]), fault.reason, fault.why) for rows, parsed in parts for fault in parsed.faults
        ),
    )


def _by_row(faults: Iterable[Fault]) -> list[Fault]:
    return sorted(faults, key=lambda fault: fault.row)
