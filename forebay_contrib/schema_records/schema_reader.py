"""Read records that have a schema, given with the stream or named by an id in each record, into the stream's columns.

Confluent's header is a 0 and the id in four bytes. A schema that is seen for the first time is asked for once, and its
new columns become columns of the stream. Owns what is known of ids. It must never make a dead letter of a record that
the registry has said nothing about.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay_contrib.schema_records.cursor import NO_UTF8, Cursor
from forebay_contrib.schema_records.fitting import fitted, misfits
from forebay_contrib.schema_records.registry_client import (
    NoSuchSchemaError,
    RegisteredSchema,
    RegistryAwayError,
    RegistryClient,
)
from receiver_runtime.block_path.text_check import RowsWaitError, TextCheck
from receiver_runtime.block_store.frames.columns import arrow_schema, arrow_type
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from forebay_contrib.schema_records.cursor import Numbers
    from forebay_contrib.schema_records.declared_schema import DeclaredSchema
    from receiver_runtime.block_store.frames.columns import Columns

# Records that are decoded together: their numbers stay in a processor's cache.
_PIECE = 16_384
_HEADER = 5  # bytes
# Ids that one read asks the registry for: bytes that only look like a header may have any, and a push that goes on for
# too long hangs.
_MOST_ASKS = 50
# Seconds for which columns that the driver log refused are not tried again.
_REFUSED_SECONDS = 30.0


class _NotRegisteredError(ValueError):
    """Say why the stream can't have columns, by the driver log."""


class SchemaDecoder(ABC):
    """Decode records of one schema. Safe from any thread."""

    def __init__(self, columns: Columns) -> None:
        self.schema = arrow_schema(columns)
        self._text = TextCheck(self.schema)

    @abstractmethod
    def arrays(self, cursor: Cursor) -> list[pa.Array]:
        """Read a record from where the cursor stands in each; note those that are none as faults."""

    def decode(self, cursor: Cursor) -> pa.RecordBatch:
        """Return the records as columns, and anything in place of those that have a fault."""
        batch = pa.RecordBatch.from_arrays(self.arrays(cursor), schema=self.schema)
        cursor.finish()
        if not self._text.is_valid(batch):
            cursor.fail(self._text.invalid_rows(batch), NO_UTF8)
        return batch


@dataclass(frozen=True, slots=True)
class _Known:
    """Hold what is known of an id, and until when: its decoder, or why its records can't be stored."""

    decoder: SchemaDecoder | None
    refusal: str = ""
    until: float = math.inf


class SchemaReader(RecordReader):
    """Read records; see the module. A subclass says how a schema is decoded, and what its kind is called."""

    #: As registries name this kind of schema.
    kind = ""

    def __init__(self, records: DeclaredSchema) -> None:
        super().__init__(records)
        self.schema = arrow_schema(records.columns)
        self._declared = (
            None if records.registry is not None else self.make_decoder(RegisteredSchema(self.kind, records.definition))
        )
        self._client = None if records.registry is None else RegistryClient(records.registry)
        # Guards what is below, where it changes; a known id is read without it.
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._types: Mapping[str, str] = {}
        self._read_types: Callable[[], Mapping[str, str]] = dict
        self._register: Callable[[Columns], None] = lambda _: None

    @abstractmethod
    def make_decoder(self, schema: RegisteredSchema) -> SchemaDecoder:
        """Return the decoder of a schema. Raises ValueError: it is none, or no columns can hold it."""

    # -- the receiver's side -----------------------------------------------------------------------------------------

    def grow(self, known: Callable[[], Mapping[str, str]], register: Callable[[Columns], None]) -> None:
        """Take what returns the types of the stream's columns, and how it gets more."""
        self._read_types = known
        self._types = known()
        self._register = register

    def is_ready(self, values: pa.BinaryArray) -> bool:
        """Return whether the schemas of all records are known."""
        if self._client is None:
            return True
        return all(
            self._now_known(number) is not None or self._client.refusal(number) is not None for number in _ids(values)
        )

    def read(self, values: pa.BinaryArray) -> Parsed:
        """Parse records; a null is a row of nulls. Raises RowsWaitError while the registry says nothing of a schema."""
        permits = iter(range(_MOST_ASKS))
        try:
            pieces = [self._read(values.slice(first, _PIECE), permits) for first in range(0, len(values) or 1, _PIECE)]
        except RowsWaitError:
            assert self._client is not None
            # So that each time that they are read fewer are left.
            self._client.hold(_ids(values))
            raise
        if len(pieces) == 1:
            return pieces[0]
        faults = [
            Fault(number * _PIECE + fault.row, fault.reason, fault.why)
            for number, piece in enumerate(pieces)
            for fault in piece.faults
        ]
        # A piece may have found new columns.
        schema = self.schema
        return Parsed(pa.concat_batches([fitted(piece.batch, schema) for piece in pieces]), faults)

    # -- one piece ---------------------------------------------------------------------------------------------------

    def _read(self, values: pa.BinaryArray, permits: Iterator[int]) -> Parsed:
        if not values.null_count:
            return self._decode(values, permits)
        present = values.is_valid().to_numpy(zero_copy_only=False)
        parsed = self._decode(values.drop_null(), permits)
        rows = np.flatnonzero(present)
        faults = [Fault(int(rows[fault.row]), fault.reason, fault.why) for fault in parsed.faults]
        fits = np.ones(len(values), np.bool_)
        fits[[fault.row for fault in faults]] = False
        at = np.cumsum(present & fits) - 1
        places = pa.array(at[fits], mask=~present[fits])
        columns = [column.take(places) for column in parsed.batch.columns]
        return Parsed(pa.RecordBatch.from_arrays(columns, schema=parsed.batch.schema), faults)

    def _decode(self, values: pa.BinaryArray, permits: Iterator[int]) -> Parsed:
        cursor = Cursor.of(values)
        unfit: dict[int, str] = {}
        found: list[tuple[pa.RecordBatch, Numbers]] = []
        for decoder, which in self._groups(cursor, unfit, permits):
            some = cursor if len(which) == len(cursor) else cursor.only(which)
            batch = decoder.decode(some)
            if some.failed.any():
                batch = batch.filter(pa.array(~some.failed))
            found.append((batch, some.rows[~some.failed]))
        # Once all groups are known: each may have had new columns.
        schema = self.schema
        faults = {
            row: (DeadLetterReason.UNPARSABLE, f"no {self.kind.title()}: {why}") for row, why in cursor.faults.items()
        }
        faults |= {row: (DeadLetterReason.DOES_NOT_FIT, why) for row, why in unfit.items()}
        listed = [Fault(row, *faults[row]) for row in sorted(faults)]
        if len(found) == 1:
            return Parsed(fitted(found[0][0], schema), listed)
        if not found:
            return Parsed(
                pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema), listed
            )
        whole = pa.concat_batches([fitted(batch, schema) for batch, _ in found])
        return Parsed(whole.take(pa.array(np.argsort(np.concatenate([rows for _, rows in found])))), listed)

    def _groups(
        self, cursor: Cursor, unfit: dict[int, str], permits: Iterator[int]
    ) -> Iterator[tuple[SchemaDecoder, Numbers]]:
        """Yield the schemas with the records that each has, behind their headers."""
        if self._declared is not None:
            yield self._declared, np.arange(len(cursor))
            return
        has_header = _has_header(cursor)
        if not has_header.all():
            cursor.fail(~has_header, "it has no header of a schema registry, which is a 0 and four bytes")
        which = np.flatnonzero(has_header)
        numbers = _numbers(cursor, which)
        cursor.places[which] += _HEADER
        distinct = np.unique(numbers).tolist()
        # First all of them: if one must be waited for, nothing was decoded in vain.
        known = [self._now_known(number) or self._ask(number, permits) for number in distinct]
        for number, one in zip(distinct, known, strict=True):
            rows = which[numbers == number]
            if one.decoder is not None:
                yield one.decoder, rows
            else:
                unfit |= dict.fromkeys(cursor.rows[rows].tolist(), one.refusal)

    # -- ids ---------------------------------------------------------------------------------------------------------

    def _now_known(self, number: int) -> _Known | None:
        """Return what is known of an id."""
        known = self._known.get(number)
        return None if known is None or known.until <= time.monotonic() else known

    def _ask(self, number: int, permits: Iterator[int]) -> _Known:
        """Return what an id is, by the registry, and let the stream have its new columns. A request takes a permit."""
        assert self._client is not None
        with self._lock:
            if (known := self._now_known(number)) is not None:
                return known
            if (refusal := self._client.refusal(number)) is not None:
                return _Known(None, refusal)
            if next(permits, None) is None:
                raise RowsWaitError(f"more than {_MOST_ASKS} ids of schemas are new: they are asked for bit by bit")
            try:
                schema = self._client.schema(number)
            except RegistryAwayError as error:
                raise RowsWaitError(str(error)) from error
            except NoSuchSchemaError as error:
                # It may be registered later.
                return _Known(None, str(error))
            known = self._known[number] = self._judged(number, schema)
            return known

    def _judged(self, number: int, schema: RegisteredSchema) -> _Known:
        if schema.kind != self.kind:
            return _Known(None, f"schema {number} is {schema.kind}, and the stream's records are {self.kind}")
        try:
            decoder = self.make_decoder(schema)
            self._take_columns(decoder.schema)
        except _NotRegisteredError as error:
            return _Known(None, f"schema {number}: {error}", time.monotonic() + _REFUSED_SECONDS)
        # A schema may be any JSON, and as deep as it likes.
        except (ValueError, TypeError, RecursionError) as error:
            return _Known(None, f"schema {number}: {error}")
        return _Known(decoder)

    def _take_columns(self, schema: pa.Schema) -> None:
        """Add the columns that the stream has not. Raises ValueError: it can't have one of them."""
        try:
            self._add_columns(schema)
        except _NotRegisteredError:
            # Another receiver may have been first with a column, of another type.
            known = self._read_types()
            if known == self._types:
                raise
            self._types = known
            self._add_columns(schema)

    def _add_columns(self, schema: pa.Schema) -> None:
        """Add them by the types that are known to be the stream's. Raises ValueError, as _NotRegisteredError."""
        mine = {field.name.lower(): field for field in self.schema}
        added = []
        problems: list[str] = []
        for field in schema:
            known = mine.get(field.name.lower())
            if known is not None and known.name != field.name:
                problems.append(f"the columns {known.name!r} and {field.name!r} have one name in Spark")
                continue
            text = self._types.get(field.name.lower())
            wanted = known.type if known is not None else field.type if text is None else arrow_type(text)
            problems += misfits(field.type, wanted, field.name)
            if known is None:
                added.append(pa.field(field.name, wanted))
        if problems:
            raise ValueError("; ".join(problems))
        if added:
            wider = pa.schema([*self.schema, *added])
            try:
                self._register([(field.name, str(field.type)) for field in wider])
            except ValueError as error:
                raise _NotRegisteredError(str(error)) from error
            self.schema = wider


def _has_header(cursor: Cursor) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found: np.ndarray[tuple[int], np.dtype[np.bool_]]
    found = (cursor.ends - cursor.places >= _HEADER) & (cursor.data[cursor.places] == 0)
    return found


def _ids(values: pa.BinaryArray) -> list[int]:
    """Return the ids in the headers of records, each once."""
    cursor = Cursor.of(values.drop_null())
    found: list[int] = np.unique(_numbers(cursor, np.flatnonzero(_has_header(cursor)))).tolist()
    return found


def _numbers(cursor: Cursor, which: Numbers) -> Numbers:
    """Return the ids in the headers of some records."""
    found = np.zeros(len(which), np.int64)
    for byte in range(1, _HEADER):
        found = found << 8 | cursor.data[cursor.places[which] + byte]
    return found
