"""Fuzz the reading of Avro records into columns: a record is taken or not whatever stands beside it."""

from __future__ import annotations

import pyarrow as pa

from forebay_contrib.schema_records.avro import Avro
from forebay_contrib.schema_records.avro_reader import AvroReader
from receiver_runtime.block_path.text_check import TextCheck
from tests.fuzz.target import fuzzed

_SCHEMA = """{"type": "record", "name": "r", "fields": [
    {"name": "a", "type": ["null", "string"]},
    {"name": "b", "type": {"type": "array", "items": {"type": "record", "name": "s", "fields": [
        {"name": "c", "type": "long"}, {"name": "d", "type": {"type": "array", "items": "string"}}]}}},
    {"name": "e", "type": {"type": "map", "values": "double"}},
    {"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
    {"name": "g", "type": {"type": "array", "items": "int"}},
    {"name": "h", "type": {"type": "enum", "name": "e", "symbols": ["X", "Y"]}},
    {"name": "i", "type": {"type": "int", "logicalType": "date"}}]}"""
_READER = AvroReader(Avro(_SCHEMA))
_TEXT = TextCheck(_READER.schema)
_GOOD = b"\x02\x02a" + b"\0\0" + b"\x02\x01" + b"\0\0\0"
_VALID = [
    _GOOD,
    b"\0" + b"\x02\x04\x02\x02x\0\0" + b"\x02\x02k" + bytes(8) + b"\0" + b"\x04\x01\x02" + b"\x02\x06\0" + b"\x02\x08",
    b"\0" + b"\x03\x08\x04\x04\x02x\x02y\0\0" + b"\0" + b"\x02\xff" + b"\x05\x04\x01\x03\0" + b"\x02\x09",
    b"\0" + b"\0" + b"\0" + b"\x02\0" + b"\x90\x01" + b"\x02" * 72 + b"\0" + b"\0\0",
]
_LONG = b"\x80\x80\x08"  # 65,536


@fuzzed(
    "avro_records",
    valid=_VALID,
    words=[b"\x80", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x90\x01", b"\x01", _LONG],
    attacks=[
        b"\0" + b"\x02\x02" + _LONG + bytes(65_536) + b"\0\0\0\x02\0\0\0\0",
        b"\0" + _LONG + b"\x02\0" * 65_536 + b"\0\0\x02\0\0\0\0",
        b"\0\0" + _LONG + (b"\0" + bytes(8)) * 65_536 + b"\0\x02\0\0\0\0",
        b"\0\0\0\x02\0" + _LONG + b"\x80" * 65_536,
        b"\0\0\0\x02\0" + b"\x02\x02" * 65_536,
    ],
)
def test_a_record_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    alone = _READER.read(pa.array([record], pa.binary()))
    assert alone.batch.num_rows + len(alone.faults) == 1
    alone.batch.validate(full=True)
    assert _TEXT.is_valid(alone.batch)
    beside = _READER.read(pa.array([_GOOD, record, b"\xff", _GOOD], pa.binary()))
    assert [fault.row for fault in beside.faults] == [*(1 for _ in alone.faults), 2]
    assert [fault.why for fault in beside.faults[:-1]] == [fault.why for fault in alone.faults]
    assert beside.batch.num_rows == 2 + alone.batch.num_rows
    assert repr(beside.batch.to_pylist()[1:-1]) == repr(alone.batch.to_pylist())
