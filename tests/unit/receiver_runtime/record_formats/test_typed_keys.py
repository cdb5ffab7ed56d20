"""Test streams whose keys are parsed too: their columns, their faults, and what is kept of a row that does not fit."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.records.registry import RecordsError, parse_records

SOURCE = arrow_schema(Kafka.columns)
RECORDS = Json("item STRING, pieces BIGINT NOT NULL", key=Json("id BIGINT NOT NULL"), keep=["_key", "_offset"])


def rows_of(*records: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
    """Return rows of Kafka with these keys and values, at offsets from 0 on."""
    given = {
        "key": [key for key, _ in records],
        "value": [value for _, value in records],
        "offset": list(range(len(records))),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(given.get(field.name, [None] * len(records)), field.type) for field in SOURCE], schema=SOURCE
    )


def checker(records: Json = RECORDS) -> TypedRows:
    return TypedRows(records, SOURCE, Kafka.record_column)


def test_columns_of_the_key_stand_behind_those_of_the_record() -> None:
    checked = checker().check(rows_of((b'{"id": 7}', b'{"item": "tea", "pieces": 2}')))
    assert checked.batch.schema.names == ["item", "pieces", "_key_id", "_key", "_offset"]
    assert checked.batch.to_pylist() == [{"item": "tea", "pieces": 2, "_key_id": 7, "_key": b'{"id": 7}', "_offset": 0}]
    assert checked.letters == ()


def test_a_null_key_and_a_tombstone_are_rows() -> None:
    checked = checker().check(rows_of((None, b'{"pieces": 1}'), (b'{"id": 7}', None), (None, None)))
    assert [tuple(row.values())[:3] for row in checked.batch.to_pylist()] == [
        (None, 1, None),
        (None, None, 7),
        (None, None, None),
    ]


def test_a_key_that_does_not_fit_is_a_dead_letter_with_its_place_beside_rows_that_fit() -> None:
    given = rows_of(
        (b'{"id": 1}', b'{"pieces": 1}'),
        (b'{"id": "2"}', b'{"pieces": 2}'),
        (b"no", b'{"pieces": 3}'),
        (b"no", b"nor this"),
        (b'{"id": 5}', b'{"pieces": 5}'),
        (b'{"id": 6}', b"{}"),
        (None, None),
    )
    checked = checker().check(given)
    assert checked.batch["_offset"].to_pylist() == [0, 4, 6]
    assert checked.batch["_key_id"].to_pylist() == [1, 5, None]
    assert checked.invalid is not None
    assert checked.invalid.tolist() == [False, True, True, True, False, True, False]
    reasons = [(letter.reason.label, letter.why.partition(":")[0] == "key") for letter in checked.letters]
    assert reasons == [("does_not_fit", True), ("unparsable", True), ("unparsable", False), ("does_not_fit", False)]
    assert checked.letters[0].why == "key: Expected `int | null`, got `str` - at `$.id`"


def test_a_dead_letter_is_the_whole_row_so_that_a_replay_keeps_its_key_and_position() -> None:
    strict = checker()
    given = rows_of((b'{"id": "1"}', b'{"pieces": 1}'), (b'{"id": 2}', b'{"pieces": "2"}'))
    letters = [letter.data for letter in strict.check(given).letters]
    again = strict.rows_of(letters)
    assert again.to_pylist() == given.to_pylist()
    lenient = Json("pieces BIGINT", coerce=["numbers"], key=Json("id BIGINT", coerce=["numbers"]), keep=["_offset"])
    assert checker(lenient).check(again).batch.to_pylist() == [
        {"pieces": 1, "_key_id": 1, "_offset": 0},
        {"pieces": 2, "_key_id": 2, "_offset": 1},
    ]


def test_a_dead_letter_whose_text_is_not_utf_8_is_its_row_again_and_is_refused_again() -> None:
    given = rows_of((b'{"id": 1}', b'{"pieces": 1}'), (b'{"id": 2}', b'{"pieces": 2}'))
    place = SOURCE.get_field_index("topic")
    topics = pa.array([b"caf\xc3", b"tea"], pa.binary()).view(pa.string())
    [letter] = checker().check(given.set_column(place, SOURCE.field(place), topics)).letters
    again = checker().rows_of([letter.data])
    assert again.column("topic").view(pa.binary()).to_pylist() == [b"caf\xc3"]
    assert again.column("value").to_pylist() == [b'{"pieces": 1}']
    assert [one.data for one in checker().check(again).letters] == [letter.data]


def test_a_dead_letter_has_nothing_of_the_rows_beside_it() -> None:
    given = rows_of((b'{"id": 1}', b"no"), (b'{"id": 20}', b'{"pieces": 1, "item": "hunter2"}'), (b'{"id": 30}', None))
    [letter] = checker().check(given).letters
    assert not [word for word in (b"hunter2", b'"id": 20', b'"id": 30') if word in letter.data]


@pytest.mark.parametrize("letter", [b"", b"{}", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff\xff\x7f", None])
def test_a_dead_letter_of_before_the_key_was_parsed_is_a_record(letter: bytes | None) -> None:
    if letter is None:
        # Of another source.
        sink = pa.BufferOutputStream()
        other = pa.RecordBatch.from_pydict({"key": [b"k"]})
        with pa.ipc.new_stream(sink, other.schema) as writer:
            writer.write_batch(other)
        letter = sink.getvalue().to_pybytes()
    [row] = checker().rows_of([letter]).to_pylist()
    assert (row["key"], row["value"]) == (None, letter)


def test_no_letter_is_no_row() -> None:
    assert checker().rows_of([]).num_rows == 0


def test_a_declaration_is_the_same_when_it_is_read_back_and_has_no_word_of_a_key_that_is_not_declared() -> None:
    stored = json.loads(json.dumps(RECORDS.model_dump(mode="json")))
    assert parse_records(stored) == RECORDS
    assert "key" not in Json("item STRING").model_dump(mode="json")


@pytest.mark.parametrize(
    ("records", "source", "said"),
    [
        (Json("a INT", key=Json("b INT")), Http, "this source has no column 'key'"),
        (Json("a INT, _key_b INT", key=Json("b INT")), Kafka, "the column '_key_b' is there for each record"),
        (Json("a INT, _KEY_B INT", key=Json("b INT")), Kafka, "the column '_key_b' is there for each record"),
    ],
)
def test_columns_that_can_not_be_are_refused(records: Json, source: type[Http | Kafka], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        records.block_columns(source.columns, source.record_column)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ({"kind": "json", "columns": [["a", "int32"]], "raw": True}, "write them beside key"),
        ({"kind": "json", "columns": [["a", "int32"]], "keep": []}, "write them beside key"),
        ({"kind": "nope"}, "'nope'"),
        ({"kind": "json"}, "columns"),
        ("json", "key"),
    ],
)
def test_a_key_that_can_not_be_is_refused(key: object, said: str) -> None:
    with pytest.raises(RecordsError, match=said):
        parse_records({"kind": "json", "columns": [["a", "int32"]], "key": key})
