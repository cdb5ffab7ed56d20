"""Read lines of statsd into columns: most of them all at once, by one pattern and vector code.

The pattern knows metrics with their sections in the order in which clients write them. All other lines, and those in
which something is odd, are read one by one (``lines``), which has the rules: what is read in bulk has the same result.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_contrib.statsd.lines import (
    LAST_SECOND,
    MOST_BYTES,
    NUMBER,
    NUMBER_TYPES,
    SET,
    TIME,
    Line,
    NoLineError,
    parse,
)
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader
from receiver_runtime.record_formats.text_reader import not_empty
from receiver_runtime.record_formats.text_values import typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.sources.records.declared import Records

    Rows = np.ndarray[tuple[int], np.dtype[np.bool_]]
    Places = np.ndarray[tuple[int], np.dtype[np.int64]]

# Records of one step: its arrays fit into a processor's cache.
_PIECE = 8192
_MARK = "\ufeff"
_LINE_ENDS = "\r\n"
_SECOND = 1_000_000  # microseconds
_METRIC = (
    rf"^(?P<name>[^:|{{\n]+):(?:(?P<value>{NUMBER})\|(?P<type>{'|'.join(NUMBER_TYPES)})|(?P<member>[^|\n]+)\|{SET})"
    rf"(?:\|@(?P<rate>{NUMBER}))?(?:\|#(?P<tags>[^|\n]*))?(?:\|c:(?P<container>[^|\n]*))?"
    rf"(?P<other>(?:\|e:[^|\n]*)?(?:\|card:[^|\n]*)?)(?:\|T(?P<time>{TIME}))?$"
)
_TAG = r"^(?P<key>[^:]*)(?P<value>(?::(?s:.*))?)$"
_NAMES = tuple(one.name for one in fields(Line))
_VALUES = attrgetter(*_NAMES)


class StatsdReader(RecordReader):
    """Read lines of statsd; see the module. Safe from any thread."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.schema = arrow_schema(records.columns)

    def read(self, values: pa.BinaryArray) -> Parsed:
        """See ``RecordReader``."""
        if len(values) <= _PIECE:
            return self._piece(values)
        parsed = [(first, self._piece(values.slice(first, _PIECE))) for first in range(0, len(values), _PIECE)]
        faults = tuple(Fault(first + one.row, one.reason, one.why) for first, piece in parsed for one in piece.faults)
        return Parsed(pa.concat_batches([piece.batch for _, piece in parsed]), faults)

    def _piece(self, values: pa.BinaryArray) -> Parsed:
        texts, faults = _texts(values)
        bulk, in_bulk = _in_bulk(texts)
        others = np.flatnonzero(~in_bulk)
        rows: list[int] = []
        lines: list[Sequence[object]] = []
        for row, text in zip(others.tolist(), texts.take(pa.array(others)).to_pylist(), strict=True):
            if row in faults:
                continue
            try:
                lines.append((None,) * len(_NAMES) if text is None else _VALUES(parse(text)))
                rows.append(row)
            except NoLineError as error:
                faults[row] = Fault(row, error.reason, str(error))
        batch = self._batch(bulk)
        if rows:
            alone = dict(zip(_NAMES, map(list, zip(*lines, strict=True)), strict=True))
            order = np.argsort(np.concatenate([np.flatnonzero(in_bulk), np.array(rows, np.int64)]), kind="stable")
            batch = pa.concat_batches([batch, self._batch(alone)]).take(pa.array(order))
        return Parsed(batch, tuple(faults[row] for row in sorted(faults)))

    def _batch(self, columns: Mapping[str, pa.Array | list[object]]) -> pa.RecordBatch:
        arrays = []
        for one in self.schema:
            column = columns[one.name]
            if isinstance(column, list):
                is_time = pa.types.is_timestamp(one.type)
                column = _times(pa.array(column, pa.int64())) if is_time else pa.array(column, one.type)
            arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _texts(values: pa.BinaryArray) -> tuple[pa.StringArray, dict[int, Fault]]:
    """Return records as text, without marks at their beginnings and line ends at their ends; null: it is no text."""
    try:
        return _bare(values.cast(pa.string())), {}
    except pa.ArrowInvalid:
        pass
    faults: dict[int, Fault] = {}
    texts: list[str | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            faults[row] = Fault(row, DeadLetterReason.UNPARSABLE, f"no UTF-8 at byte {error.start}")
    return _bare(pa.array(texts, pa.string())), faults


def _bare(texts: pa.StringArray) -> pa.StringArray:
    found = pc.utf8_rtrim(texts, _LINE_ENDS)
    if pc.any(is_marked := pc.starts_with(found, _MARK)).as_py():
        found = pc.if_else(is_marked, pc.utf8_slice_codeunits(found, 1), found)
    return found


def _in_bulk(texts: pa.StringArray) -> tuple[Mapping[str, pa.Array], Rows]:
    """Return the columns of the lines that can be read at once, and which lines these are."""
    is_short = pc.less_equal(pc.binary_length(texts), MOST_BYTES)
    found = pc.extract_regex(pc.if_else(is_short, texts, pa.scalar(None, pa.string())), _METRIC)
    in_bulk = found.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(in_bulk)
    parts = _parts(found.take(pa.array(places)))
    numbers, odd_numbers = typed(pc.utf8_ltrim(not_empty(parts["value"]), "+"), pa.float64())
    rates, odd_rates = typed(pc.utf8_ltrim(not_empty(parts["rate"]), "+"), pa.float64())
    rates = pc.fill_null(rates, 1.0)
    seconds = not_empty(parts["time"]).cast(pa.int64())
    tags, is_odd = _tags(parts["tags"])
    is_odd[[*odd_numbers, *odd_rates]] = True
    is_odd |= ~pc.and_(pc.greater(rates, 0), pc.less_equal(rates, 1)).to_numpy(zero_copy_only=False)
    is_odd |= pc.fill_null(pc.greater(seconds, LAST_SECOND), False).to_numpy(zero_copy_only=False)  # noqa: FBT003  Arrow's
    is_set = pc.equal(parts["type"], "")
    columns = {
        "name": parts["name"],
        "type": pc.if_else(is_set, SET, parts["type"]),
        "value": numbers,
        "values": pa.nulls(len(numbers), pa.list_(pa.float64())),
        "text": pc.if_else(is_set, parts["member"], parts["value"]),
        "sample_rate": rates,
        "tags": tags,
        "timestamp": pc.if_else(pa.array(is_odd), pa.scalar(None, seconds.type), seconds),
        "container": not_empty(parts["container"]),
        "other": pc.utf8_slice_codeunits(not_empty(parts["other"]), 1),
    }
    if is_odd.any():
        in_bulk[places[is_odd]] = False
        kept = pa.array(~is_odd)
        columns = {name: column.filter(kept) for name, column in columns.items()}
    return {**columns, "timestamp": _times(columns["timestamp"])}, in_bulk


def _parts(found: pa.StructArray) -> dict[str, pa.StringArray]:
    return {one.name: pc.struct_field(found, one.name) for one in found.type}


def _times(seconds: pa.Int64Array) -> pa.TimestampArray:
    return pc.multiply(seconds, _SECOND).cast(pa.timestamp("us", "UTC"))


def _tags(texts: pa.StringArray) -> tuple[pa.MapArray, Rows]:
    """Return the tags of each line, null where it has none, and the lines in which a tag comes twice."""
    split = pc.split_pattern(texts, ",")
    rows = pc.list_parent_indices(split).to_numpy()
    flat = split.flatten()
    there = pc.greater(pc.binary_length(flat), 0)
    rows = rows[there.to_numpy(zero_copy_only=False)]
    parts = _parts(pc.extract_regex(flat.filter(there), _TAG))
    counts = np.bincount(rows, minlength=len(texts))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    is_odd = np.zeros(len(texts), np.bool_)
    if len(rows):
        codes = parts["key"].dictionary_encode().indices.to_numpy()
        cells = rows.astype(np.int64) * (int(codes.max()) + 1) + codes
        _, firsts, times = np.unique(cells, return_index=True, return_counts=True)
        is_odd[rows[firsts[times > 1]]] = True
    mask = np.append(counts == 0, False)
    values = pc.utf8_slice_codeunits(not_empty(parts["value"]), 1)
    return pa.MapArray.from_arrays(pa.array(offsets, mask=mask), parts["key"], values), is_odd
