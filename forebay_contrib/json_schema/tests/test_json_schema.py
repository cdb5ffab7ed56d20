"""Test that a JSON Schema takes the records that a validator takes, and is refused where it could not be checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.json_schema.declaration import JsonSchema
from forebay_contrib.json_schema.schema_columns import declared_by_schema
from tests.support.searches import examples

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.record_formats.record_reader import Parsed

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "order",
    "type": "object",
    "required": ["item", "pieces"],
    "additionalProperties": False,
    "properties": {
        "item": {"type": "string", "minLength": 1, "maxLength": 3},
        "pieces": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
        "price": {"anyOf": [{"type": "number", "exclusiveMinimum": 0.5, "maximum": 1000}, {"type": "null"}]},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "id": {"type": "string", "format": "uuid"},
        "address": {"type": "string", "format": "ipv4"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^a"}, "minItems": 1, "maxItems": 2},
        "kind": {"enum": ["a", "b", None]},
        "version": {"const": 1},
        "paid": {"oneOf": [{"type": "null", "title": "none"}, {"type": "boolean", "connect.index": 1}]},
        "place": {"$ref": "#/$defs/place", "description": "of delivery"},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}},
    },
    "$defs": {
        "place": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"city": {"type": "string"}, "zip": {"$ref": "#/$defs/zip"}},
            "required": ["city"],
        },
        "zip": {"type": "string", "pattern": r"^\d{5}$"},
    },
}
VALIDATOR = jsonschema_rs.validator_for(ORDER, validate_formats=True)


def read(records: JsonSchema, *values: object) -> Parsed:
    reader = records.load_reader()(records)
    parsed: Parsed = reader.read(pa.array([json.dumps(value).encode() for value in values], pa.binary()))
    return parsed


_place = st.fixed_dictionaries(
    {}, optional={"city": st.sampled_from(["x", 1]), "zip": st.sampled_from(["12345", "1", 1]), "more": st.just(1)}
)
_records = st.fixed_dictionaries(
    {},
    optional={
        "item": st.text("aé", max_size=4) | st.just(1),
        "pieces": st.integers(0, 10) | st.just("1"),
        "price": st.sampled_from([0.5, 0.75, 1, 1000, 1000.5, "1"]),
        "at": st.sampled_from(["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5+01:00", "2026-01-02T03:04:05", "now"]),
        "day": st.sampled_from(["2026-01-02", "2026-02-30"]),
        "id": st.sampled_from(["123e4567-e89b-12d3-a456-426614174000", "123E4567-e89b-12d3-a456-42661417400", ""]),
        "address": st.sampled_from(["1.2.3.4", "256.1.1.1", "1.2.3", "01.2.3.4"]),
        "tags": st.lists(st.sampled_from(["a", "ab", "b", None, 1]), max_size=3),
        "kind": st.sampled_from(["a", "b", "c", 1]),
        "version": st.sampled_from([1, 2, "1"]),
        "paid": st.booleans() | st.sampled_from([1, None]),
        "place": _place,
        "places": st.lists(_place | st.none(), max_size=2),
        "more": st.just(1),
    },
)


@settings(max_examples=examples(3000))
@given(st.lists(_records, max_size=6))
@pytest.mark.search
def test_records_are_taken_as_a_validator_takes_them(records: list[dict[str, Any]]) -> None:
    # Most have what is required.
    records = [{"item": "a", "pieces": 1, **record} if number % 3 else record for number, record in enumerate(records)]
    parsed = read(JsonSchema(ORDER), *records)
    fit = [VALIDATOR.is_valid(record) for record in records]
    assert [fault.row for fault in parsed.faults] == [row for row, fits in enumerate(fit) if not fits]
    taken = [record for record, fits in zip(records, fit, strict=True) if fits]
    for row, record in zip(parsed.batch.to_pylist(), taken, strict=True):
        for name in ("item", "pieces", "id", "tags", "kind", "version", "paid"):
            assert row[name] == record.get(name)


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ({"pieces": 0}, "0 is not at least 1 - at `$.pieces`"),
        ({"item": ""}, "'' has less than 1 - at `$.item`"),
        ({"tags": ["a", "b"]}, "'b' does not match ^a - at `$.tags[...]`"),
        ({"places": [{"city": "x"}, {"zip": "12345"}]}, "the value is missing or null - at `$.places[...].city`"),
        ({"places": [None]}, "the value is missing or null - at `$.places[...]`"),
        ({"kind": "c" * 500}, "is none of 'a', 'b' - at `$.kind`"),
        ({"place": {"city": "x", "y": 1}}, "Object contains unknown field `y` - at `$.place`"),
    ],
)
def test_a_record_that_does_not_fit_says_why(member: dict[str, Any], said: str) -> None:
    good = {"item": "a", "pieces": 1}
    parsed = read(JsonSchema(ORDER), good, {**good, **member}, good)
    assert parsed.batch.num_rows == 2
    [fault] = parsed.faults
    assert fault.row == 1
    assert fault.why.endswith(said)
    assert len(fault.why) < 150


def test_null_is_the_same_as_missing() -> None:
    parsed = read(
        JsonSchema(ORDER), {"item": "a", "pieces": 1, "kind": None, "paid": None}, {"item": "a", "pieces": None}
    )
    assert [row["paid"] for row in parsed.batch.to_pylist()] == [None]
    assert [fault.why for fault in parsed.faults] == ["the value is missing or null - at `$.pieces`"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array"}, "a record is an object"),
        ({"type": "object"}, "no properties"),
        ({"type": "string", "format": "email"}, "format 'email'"),
        ({"type": "string", "pattern": "(?=a)"}, "RE2"),
        ({"type": ["string", "integer"]}, "not one type"),
        ({}, "not one type"),
        (True, "says no type"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "oneOf can't be checked"),
        ({"oneOf": [{"type": "null"}, {"type": ["string", "null"]}]}, "null, which fits twice"),
        ({"type": "string", "pattern": "a", "oneOf": [{"type": "string"}]}, "oneOf can't be checked"),
        ({"type": "string", "not": {"const": "a"}}, "not can't be checked"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "anyOf"),
        ({"type": "integer", "multipleOf": 2}, "multipleOf"),
        ({"type": "integer", "minLength": 2}, "minLength"),
        ({"type": "string", "minLength": "2"}, "is no length"),
        ({"type": "string", "maxLength": -1}, "is no length"),
        ({"type": "string", "maxLength": 2**31}, "is no length"),
        ({"type": "array", "items": {"type": "string"}, "minItems": True}, "is no length"),
        ({"type": "string", "pattern": 5}, "is no pattern"),
        ({"type": "number", "exclusiveMinimum": True}, "draft 6"),
        ({"type": "integer", "minimum": 2**70}, "at_least"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array"}, "says no type"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {}}, "patternProperties"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}, "'b', which is no property"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}, "in some objects"),
        ({"enum": ["a", 1]}, "not all texts"),
        ({"type": "string", "enum": [1]}, "another type"),
        ({"$ref": "other.json"}, "no place of this document"),
        ({"$ref": "#/$defs/none"}, "there is no"),
        ({"$ref": "#/$defs/loop"}, "contains itself"),
        ({"$ref": "#"}, "contains itself"),
        ({"$ref": "#/$defs/text", "minLength": 1}, "minLength beside"),
        ({"type": "string", "x-mine": 1}, "x-mine"),
    ],
)
def test_what_can_not_be_checked_is_refused_by_name(schema: dict[str, Any], said: str) -> None:
    document = {
        "type": "object",
        "properties": {"member": schema},
        "$defs": {"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}},
    }
    whole = said in {"a record is an object", "no properties"}
    with pytest.raises(ValueError, match=said) as caught:
        JsonSchema(schema if whole else document)
    assert whole or "member" in str(caught.value) or said in {"RE2", "contains itself"}


def test_a_reference_within_an_inner_schema_that_has_an_id_is_to_that_schema() -> None:
    inner = {
        "$id": "a.json",
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/X"}, "y": {"$ref": "root#/$defs/X"}, "z": {"$ref": "deep/b.json"}},
        "$defs": {"X": {"type": "string"}, "~/": {"$id": "deep/b.json", "$ref": "c.json"}},
    }
    deep = {"$id": "http://shop/deep/c.json", "$ref": "#/$defs/X", "$defs": {"X": {"type": "boolean"}}}
    schema = {
        "$id": "http://shop/root",
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "a.json#/$defs/X"}, "c": {"$ref": "#/$defs/X"}},
        "$defs": {"A": inner, "X": {"$id": "#anchor", "type": "integer"}, "C": deep},
    }
    members = {"x": {"type": "string"}, "y": {"type": "integer"}, "z": {"type": "boolean"}}
    plain = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "properties": members},
            "b": {"type": "string"},
            "c": {"type": "integer"},
        },
    }
    assert declared_by_schema(schema)["columns"] == declared_by_schema(plain)["columns"]


def test_schemas_that_refer_to_others_twice_are_refused_before_they_fill_the_memory() -> None:
    inner: dict[str, Any] = {"d30": {"type": "string"}}
    for number in range(30):
        next_one = {"$ref": f"#/$defs/d{number + 1}"}
        inner[f"d{number}"] = {"type": "object", "properties": {"a": next_one, "b": next_one}}
    document = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": inner}
    with pytest.raises(ValueError, match="more than 5,000 schemas in all"):
        JsonSchema(document)


def test_more_types_in_one_another_than_blocks_have_are_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ValueError, match="column 'a' has more than 60 types in one another"):
        JsonSchema({"type": "object", "properties": {"a": schema}})


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps(ORDER), encoding="utf-8")
    assert JsonSchema(path) == JsonSchema(str(path)) == JsonSchema(ORDER)


def test_a_declaration_is_the_same_when_it_is_read_back() -> None:
    declared = JsonSchema(ORDER, raw=True)
    assert JsonSchema.model_validate(json.loads(json.dumps(declared.model_dump(mode="json")))) == declared
