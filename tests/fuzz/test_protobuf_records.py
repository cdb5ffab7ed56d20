"""Fuzz the reading of Protobuf messages into columns: a message is taken or not whatever stands beside it."""

from __future__ import annotations

import pyarrow as pa

from forebay_contrib.schema_records.protobuf import Protobuf
from forebay_contrib.schema_records.protobuf_reader import ProtobufReader
from receiver_runtime.block_path.text_check import TextCheck
from tests.fuzz.target import fuzzed

_SCHEMA = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message R {
    optional string a = 1;
    repeated S b = 2;
    map<string, double> c = 3;
    repeated sint32 d = 4;
    K e = 5;
    google.protobuf.Timestamp f = 6;
    oneof g { fixed64 h = 7; bytes i = 8; }
    repeated fixed32 j = 9;
    message S { int64 k = 1; repeated string l = 2; }
    enum K { X = 0; Y = 1; }
}"""
_READER = ProtobufReader(Protobuf(_SCHEMA))
_TEXT = TextCheck(_READER.schema)
_GOOD = b"\x0a\x01a" + b"\x28\x01"
_VALID = [
    b"",
    _GOOD,
    b"\x12\x05\x08\x01\x12\x01x" + b"\x12\x00" + b"\x1a\x0c\x0a\x01k\x11" + bytes(8) + b"\x22\x02\x01\x02",
    b"\x20\x03\x20\x04" + b"\x32\x04\x08\x01\x10\x02" + b"\x39" + bytes(8) + b"\x4a\x04\1\2\3\4" + b"\x4d\1\2\3\4",
    b"\x42\x01\xff" + b"\xf8\x01\x07" + b"\x82\x02\x03abc",
]
_LONG = b"\x80\x80\x04"  # 65,536


@fuzzed(
    "protobuf_records",
    examples=60,
    valid=_VALID,
    words=[b"\x0a", b"\x12", b"\x1a", b"\x80", b"\x0b", b"\x0c", b"\xff" * 9 + b"\x01", b"\xff" * 10, _LONG],
    attacks=[
        b"\x0a" + _LONG + bytes(65_536),
        b"\x12\x00" * 8_192,
        b"\x22" + _LONG + b"\x80" * 65_536,
        b"\x22" + _LONG + b"\x01" * 65_536,
        b"\x20\x01" * 8_192,
        b"\x0a\x00" * 8_192,
        b"\x4d\0\0\0\0" * 4_096,
        b"\xf8\x01\x07" * 8_192,
        b"\x1a\x00" * 8_192,
        b"\x12" * 65_536,
    ],
)
def test_a_message_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    alone = _READER.read(pa.array([record], pa.binary()))
    assert alone.batch.num_rows + len(alone.faults) == 1
    alone.batch.validate(full=True)
    assert _TEXT.is_valid(alone.batch)
    beside = _READER.read(pa.array([_GOOD, record, b"\xff", _GOOD], pa.binary()))
    assert [fault.row for fault in beside.faults] == [*(1 for _ in alone.faults), 2]
    assert [fault.why for fault in beside.faults[:-1]] == [fault.why for fault in alone.faults]
    assert beside.batch.num_rows == 2 + alone.batch.num_rows
    assert repr(beside.batch.to_pylist()[1:-1]) == repr(alone.batch.to_pylist())
