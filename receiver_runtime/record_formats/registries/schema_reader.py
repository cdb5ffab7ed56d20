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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_path.text_check import RowsWaitError
from receiver_runtime.block_store.frames.columns import arrow_schema, arrow_type
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.fitting import fitted, misfits
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader
from receiver_runtime.record_formats.registries.registry_client import (
    NoSuchSchemaError,
    RegisteredSchema,
    RegistryAwayError,
    RegistryClient,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from receiver_runtime.block_store.frames.columns import Columns
    from receiver_runtime.sources.fields.schema_registry import Registry
    from receiver_runtime.sources.records.declared import Records

    Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

# Records that are decoded together: their numbers stay in a processor's cache.
_PIECE = 16_384
_HEADER = 5  # bytes
NO_HEADER = "it has no header of a schema registry, which is a 0 and four bytes"
# Ids that one read asks the registry for: bytes that only look like a header may have any, and a push that goes on for
# too long hangs.
_MOST_ASKS = 50
# Seconds for which columns that the driver log refused are not tried again.
_REFUSED_SECONDS = 30.0


class _NotRegisteredError(ValueError):
    """Say why the stream can't have columns, by the driver log."""


class SchemaDecoder(ABC):
    """Decode records of one schema. Safe from any thread. ``schema``: the columns that it gives."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @abstractmethod
    def decode(self, records: pa.BinaryArray, header: int) -> Parsed:
        """Return records, none of which is null and each of which begins with a header of ``header`` bytes."""


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

    def __init__(self, records: Records, registry: Registry | None) -> None:
        super().__init__(records)
        self.schema = arrow_schema(records.columns)
        self._client = None if registry is None else RegistryClient(registry)
        self._declared = self.make_declared() if registry is None else None
        # Guards what is below, where it changes; a known id is read without it.
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._types: Mapping[str, str] = {}
        self._read_types: Callable[[], Mapping[str, str]] = dict
        self._register: Callable[[Columns], None] = lambda _: None

    @abstractmethod
    def make_decoder(self, schema: RegisteredSchema) -> SchemaDecoder:
        """Return the decoder of a schema. Raises ValueError: it is none, or no columns can hold it."""

    def make_declared(self) -> SchemaDecoder:
        """Return the decoder of records without a registry. Raises ValueError."""
        raise NotImplementedError

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

    def refusal_of(self, schema: RegisteredSchema) -> str:
        """Return why records of a schema can't be stored beside those of the stream; an empty text: they can."""
        return self._judged("its newest schema", schema).refusal

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
        faults: dict[int, Fault] = {}
        found: list[tuple[pa.RecordBatch, Numbers]] = []
        header = 0 if self._declared is not None else _HEADER
        for decoder, rows in self._groups(values, faults, permits):
            parsed = decoder.decode(values if len(rows) == len(values) else values.take(pa.array(rows)), header)
            for fault in parsed.faults:
                faults[int(rows[fault.row])] = replace(fault, row=int(rows[fault.row]))
            found.append((parsed.batch, np.delete(rows, [fault.row for fault in parsed.faults])))
        # Once all groups are known: each may have had new columns.
        schema = self.schema
        listed = [faults[row] for row in sorted(faults)]
        if len(found) == 1:
            return Parsed(fitted(found[0][0], schema), listed)
        if not found:
            return Parsed(
                pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema), listed
            )
        whole = pa.concat_batches([fitted(batch, schema) for batch, _ in found])
        return Parsed(whole.take(pa.array(np.argsort(np.concatenate([rows for _, rows in found])))), listed)

    def _groups(
        self, values: pa.BinaryArray, faults: dict[int, Fault], permits: Iterator[int]
    ) -> Iterator[tuple[SchemaDecoder, Numbers]]:
        """Yield the schemas with the rows of the records that each has. Note the faults of the others."""
        if self._declared is not None:
            yield self._declared, np.arange(len(values))
            return
        has_header, numbers = _headers(values)
        for row in np.flatnonzero(~has_header).tolist():
            faults[row] = Fault(row, DeadLetterReason.UNPARSABLE, NO_HEADER)
        which = np.flatnonzero(has_header)
        numbers = numbers[which]
        distinct = _distinct(numbers)
        # First all of them: if one must be waited for, nothing was decoded in vain.
        known = [self._now_known(number) or self._ask(number, permits) for number in distinct]
        for number, one in zip(distinct, known, strict=True):
            rows = which if len(distinct) == 1 else which[numbers == number]
            if one.decoder is not None:
                yield one.decoder, rows
            else:
                for row in rows.tolist():
                    faults[row] = Fault(row, DeadLetterReason.DOES_NOT_FIT, one.refusal)

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
            known = self._known[number] = self._judged(f"schema {number}", schema)
            return known

    def _judged(self, name: str, schema: RegisteredSchema) -> _Known:
        """Return what is to be known of a schema; ``name``: what people know it by."""
        if schema.kind != self.kind:
            return _Known(None, f"{name} is {schema.kind}, and the stream's records are {self.kind}")
        try:
            decoder = self.make_decoder(schema)
        except Exception as error:  # noqa: BLE001  a schema may be any JSON, and as deep as it likes
            return _Known(None, f"{name}: {str(error) or type(error).__name__}")
        try:
            self._take_columns(decoder.schema)
        except _NotRegisteredError as error:
            return _Known(None, f"{name}: {error}", time.monotonic() + _REFUSED_SECONDS)
        except (ValueError, TypeError, RecursionError) as error:
            return _Known(None, f"{name}: {error}")
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


def _headers(values: pa.BinaryArray) -> tuple[Flags, Numbers]:
    """Return for each record whether it has a header, and the id in it. None of them is null."""
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return np.zeros(len(values), np.bool_), np.zeros(len(values), np.int64)
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    text = np.frombuffer(data, np.uint8)
    long_enough = np.diff(bounds) >= _HEADER
    # A record that is too short is looked at from the beginning, so that no place is beyond the bytes.
    places = np.where(long_enough, bounds[:-1], 0) if len(text) >= _HEADER else np.zeros(0, np.int32)
    numbers = np.zeros(len(values), np.int64)
    if not len(places):
        return long_enough, numbers
    for byte in range(1, _HEADER):
        numbers = numbers << 8 | text[places + byte]
    return long_enough & (text[places] == 0), numbers


def _ids(values: pa.BinaryArray) -> list[int]:
    """Return the ids in the headers of records, each once."""
    has_header, numbers = _headers(values.drop_null())
    return _distinct(numbers[has_header])


def _distinct(numbers: Numbers) -> list[int]:
    """Return each number once. Mostly it is one, which is seen without sorting them."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [int(numbers[0])]
    found: list[int] = np.unique(numbers).tolist()
    return found
