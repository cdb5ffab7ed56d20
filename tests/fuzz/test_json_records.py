"""Fuzz the reading of JSON records into columns: a record is taken or not whatever stands beside it."""

from __future__ import annotations

import json

import pyarrow as pa

from forebay_contrib.json_schema.declaration import JsonSchema
from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.record_formats.checked_json import CheckedJsonReader
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


_PLACE = {"type": "object", "additionalProperties": False, "required": ["c"], "properties": {"c": {"enum": [1, 2]}}}
_CHECKED = CheckedJsonReader(
    JsonSchema(
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["b"],
            "properties": {
                "a": {"type": "string", "minLength": 1, "pattern": "^[a-z]"},
                "b": {"type": "integer", "minimum": 0},
                "d": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/place"}},
            },
            "$defs": {"place": _PLACE},
        }
    )
)


@fuzzed(
    "checked_json_records",
    valid=[_GOOD, b'{"b": 1, "d": [{"c": 1}, {"c": 2}]}', b'{"b": 0, "d": [], "a": "a\\u00e9"}'],
    words=[*_WORDS, b"{}", b"}{", b'"e": 1', b'"c": 3', b"-1"],
    attacks=[b'{"b": 1, "d": [' + b'{"c": 1},' * 50_000 + b"1]}"],
)
def test_a_checked_record_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    alone = _CHECKED.read(pa.array([record], pa.binary()))
    assert alone.batch.num_rows + len(alone.faults) == 1
    beside = _CHECKED.read(pa.array([_GOOD, record, b'{"b": -1}', _GOOD], pa.binary()))
    assert [fault.row for fault in beside.faults] == [*(1 for _ in alone.faults), 2]
    assert beside.batch.num_rows == 2 + alone.batch.num_rows
    assert beside.batch.slice(1, alone.batch.num_rows).equals(alone.batch)
    if not alone.faults:
        [row] = alone.batch.to_pylist()
        assert row["b"] >= 0
        assert row["a"] is None or "a" <= row["a"][0] <= "z"
        assert all(place["c"] in {1, 2} for place in row["d"] or [])
