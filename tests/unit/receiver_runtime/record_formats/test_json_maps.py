"""Test that maps and bytes in JSON are what Python's parser gives, at any depth, and never affect a neighbour."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.sources.records.json_records import Json
from tests.support.searches import examples

DDL = (
    "id BIGINT, body BINARY, tags MAP<STRING, STRING>, deep STRUCT<maps: ARRAY<MAP<STRING, STRUCT<n: INT, b: BINARY>>>>"
    ", of MAP<STRING, MAP<STRING, ARRAY<DOUBLE>>>"
)
READER = JsonReader(Json(DDL))
BAD = {
    b'{"tags": []}': r"Expected `object \| null`.*\$\.tags",
    b'{"tags": [{"key": "a", "value": "b"}]}': r"Expected `object \| null`.*\$\.tags",
    b'{"tags": "x"}': r"Expected `object \| null`.*\$\.tags",
    b'{"tags": {"a": 1}}': r"Expected `str \| null`, got `int` - at `\$\.tags\[0\]\.value`",
    b'{"tags": {"a": "1", "\\u0061": "2"}}': r"twice - at `\$\.tags",
    b'{"tags": {}, "tags": {}}': "twice",
    b'{"deep": {"maps": [{"k": {"b": "aGk"}}]}}': r"no base64.*\$\.deep",
    b'{"of": {"a": {"b": [1, NaN]}}}': "no JSON",
    b'{"of": {"a": {"b": [1e999]}}}': r"\$\.of",
    b'{"body": "a$k="}': r"no base64.*\$\.body",
    b'{"body": 1}': r"\$\.body",
    b'{"id": 1} {"id": 2}': "no JSON",
    b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}": "deep",
    b'{"tags": {"\xff": "a"}}': "no UTF-8",
    b'{"tags": {"\\ud800": "a"}}': "no JSON",
    b"": "no JSON",
    b"[]": "array",
}
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_bytes = st.binary(max_size=7)
_entry = st.none() | st.fixed_dictionaries({}, optional={"n": st.integers(-5, 5), "b": st.none() | _bytes})
_records = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1),
        "body": st.none() | _bytes,
        "tags": st.none() | st.dictionaries(_text, st.none() | _text, max_size=3),
        "deep": st.none()
        | st.fixed_dictionaries(
            {}, optional={"maps": st.lists(st.none() | st.dictionaries(_text, _entry, max_size=2), max_size=2)}
        ),
        "of": st.dictionaries(
            _text, st.none() | st.dictionaries(_text, st.lists(st.floats(0, 1)), max_size=2), max_size=2
        ),
        "unknown": st.dictionaries(_text, _text, max_size=1),
    },
)


def as_json(value: bytes) -> str:
    return base64.b64encode(value).decode()


def as_rows(record: dict[str, Any]) -> dict[str, Any]:
    """Return what Arrow gives of a record in Python: maps are lists of pairs."""
    row = {name: record.get(name) for name in READER.schema.names}
    if row["tags"] is not None:
        row["tags"] = [*row["tags"].items()]
    if row["of"] is not None:
        row["of"] = [(name, None if inner is None else [*inner.items()]) for name, inner in row["of"].items()]
    if row["deep"] is not None and (maps := row["deep"].get("maps")) is not None:
        row["deep"] = {
            "maps": [
                None
                if one is None
                else [(key, None if v is None else {"n": v.get("n"), "b": v.get("b")}) for key, v in one.items()]
                for one in maps
            ]
        }
    elif row["deep"] is not None:
        row["deep"] = {"maps": None}
    return row


@settings(max_examples=examples(800))
@given(st.lists(_records | st.sampled_from(sorted(BAD)), min_size=1, max_size=6))
@pytest.mark.search
def test_a_record_is_what_it_says_whatever_stands_beside_it(drawn: list[dict[str, Any] | bytes]) -> None:
    texts = [one if isinstance(one, bytes) else json.dumps(one, default=as_json).encode() for one in drawn]
    parsed = READER.read(pa.array(texts, pa.binary()))
    assert parsed.batch.schema.equals(READER.schema)
    parsed.batch.validate(full=True)
    assert parsed.batch.to_pylist() == [as_rows(one) for one in drawn if not isinstance(one, bytes)]
    assert [fault.row for fault in parsed.faults] == [row for row, one in enumerate(drawn) if isinstance(one, bytes)]


@pytest.mark.parametrize(("record", "said"), BAD.items())
def test_a_record_that_does_not_fit_says_why(record: bytes, said: str) -> None:
    parsed = READER.read(pa.array([b'{"id": 1}', record, b'{"id": 2}'], pa.binary()))
    assert parsed.batch["id"].to_pylist() == [1, 2]
    (fault,) = parsed.faults
    assert fault.row == 1
    assert re.search(said, fault.why), fault.why


def test_names_of_members_are_text() -> None:
    with pytest.raises(ValidationError, match=r"'a'.*MAP<STRING"):
        Json("a ARRAY<MAP<INT, STRING>>")
