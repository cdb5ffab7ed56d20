"""Fuzz the reading of JSON records into columns: a record is taken or not whatever stands beside it."""

from __future__ import annotations

import json

import pyarrow as pa

from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.sources.records.json_records import Json
from tests.fuzz.target import fuzzed

_READER = JsonReader(
    Json("a STRING, b BIGINT NOT NULL, c DOUBLE, d TIMESTAMP, e ARRAY<STRUCT<f: DECIMAL(5, 2), g: DATE>>, h BOOLEAN")
)
# Records that are written again before they are read.
_REWRITING = JsonReader(
    Json(
        "a STRING, b BIGINT NOT NULL, c BINARY, d TIMESTAMP, e MAP<STRING, ARRAY<DECIMAL(38, 20)>>",
        coerce=["numbers", "text", "epoch_ms", "assume_utc", "empty_as_null"],
    )
)
_TEXTS = {reader: TextCheck(reader.schema) for reader in (_READER, _REWRITING)}
_GOOD = b'{"a": "beside", "b": 1}'
_VALID = [
    _GOOD,
    b'{"b": 1, "c": 1.5, "d": "2026-01-02T03:04:05.678+01:00", "e": [{"f": 1.25, "g": "2026-02-28"}, null], "h": true}',
    b'{"a": 1.50, "b": "1e2", "c": "aGk=", "d": 1700000000000, "e": {"k": [1.5, "1e-9"], "l": null}}',
    b'{"a": "\\u00e9\\ud83d\\ude00", "b": -9223372036854775808, "c": 1e-5, "e": null, "more": {"b": [[], {}]}}',
]
_WORDS = [
    b"NaN",
    b"-Infinity",
    b"null",
    b'"a": ',
    b'"b": 2',
    b"\\ud83d",
    b"\xf0\x9f",
    b"1e999",
    b"9223372036854775808",
    b"e-999999999",
    b'"1e36"',
]


@fuzzed(
    "json_records",
    valid=_VALID,
    words=[*_WORDS, b"{}", b"}{", b"\n", b'"f": 1000.5'],
    attacks=[b"[" * 200_000, b'{"x":' * 50_000 + b"1" + b"}" * 50_000, b'{"b": ' + b"1" * 100_000 + b"}"],
)
def test_a_record_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    for reader in (_READER, _REWRITING):
        _look(reader, record)


def _look(reader: JsonReader, record: bytes) -> None:
    alone = reader.read(pa.array([record], pa.binary()))
    assert alone.batch.num_rows + len(alone.faults) == 1
    alone.batch.validate(full=True)
    assert _TEXTS[reader].is_valid(alone.batch)
    beside = reader.read(pa.array([_GOOD, record, b"{", _GOOD], pa.binary()))
    assert [fault.row for fault in beside.faults] == [*(1 for _ in alone.faults), 2]
    assert beside.batch.num_rows == 2 + alone.batch.num_rows
    assert beside.batch.slice(1, alone.batch.num_rows).equals(alone.batch)
    if not alone.faults and reader is _READER:
        # Python's parser goes less deep.
        try:
            found = json.loads(record)
        except RecursionError:
            return
        assert found["b"] == alone.batch["b"][0].as_py()
        assert found.get("a") == alone.batch["a"][0].as_py()
