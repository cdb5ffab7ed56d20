"""Test which columns a typed stream declares that its blocks have, beside those that are parsed."""

from __future__ import annotations

import json
from typing import TypedDict

import pytest

from forebay import DeclarationError, Stream
from forebay.records import Json
from forebay.sources import Http
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.registry import parse_records

HTTP = Http(listen="127.0.0.1:0")
OTHERS = ["_content_type", "_path", "_received_at", "_id", "_attributes"]


class Place(TypedDict):
    street: str
    Street: str


class Order(TypedDict):
    places: list[Place]


def names(records: Json) -> list[str]:
    declared = [name for name, _ in records.block_columns(HTTP.columns, HTTP.record_column)]
    # Blocks have what is declared.
    assert TypedRows(records, arrow_schema(HTTP.columns), HTTP.record_column).schema.names == declared
    return declared


def test_all_columns_of_the_source_are_kept_or_those_that_are_named() -> None:
    assert names(Json("a INT")) == ["a", *OTHERS]
    assert names(Json("a INT", raw=True)) == ["a", "_raw", *OTHERS]
    assert names(Json("a INT", keep=("_id", "_path"))) == ["a", "_path", "_id"]
    assert names(Json("a INT", keep=(), raw=True)) == ["a", "_raw"]
    # A name is free if the source's column is not kept.
    assert names(Json("_path INT", keep=())) == ["_path"]


def test_a_declaration_keeps_what_is_kept() -> None:
    for declared in (Json("a INT"), Json("a INT", keep=()), Json("a INT", keep=["_id"])):
        assert parse_records(json.loads(json.dumps(declared.model_dump(mode="json")))) == declared


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (["_at", "_id", "path"], "'_at', 'path'.*has _content_type, _path, _received_at, _id, _attributes \\("),
        (["_raw"], "'_raw'.*raw=True keeps the record"),
        (["_body"], "'_body'"),
    ],
)
def test_a_name_that_the_source_has_not_is_refused_where_the_stream_is_declared(keep: list[str], said: str) -> None:
    with pytest.raises(DeclarationError, match=f"stream 'orders': records: keep: there is no column {said}"):
        Stream("orders", HTTP, records=Json("a INT", keep=keep))


@pytest.mark.parametrize("ddl", ["a INT, A INT", "a INT, a STRING"])
def test_columns_with_one_name_in_spark_are_refused(ddl: str) -> None:
    with pytest.raises(ValueError, match=r"'a' and '[aA]' have one name"):
        Json(ddl)


def test_two_fields_with_one_name_in_spark_are_refused() -> None:
    with pytest.raises(ValueError, match="column 'places': two fields have one name in Spark, 'Street'"):
        Json(Order)
    # Each struct has names of its own.
    Json("a STRUCT<a: STRUCT<a: INT>, b: STRUCT<a: DECIMAL(5, 2), b: TIMESTAMP>>, b MAP<STRING, STRUCT<b: INT>>")


def test_more_types_in_one_another_than_blocks_have_are_refused() -> None:
    Json("a " + "MAP<STRING, " * 30 + "INT" + ">" * 30 + ", b " + "ARRAY<" * 32 + "INT" + ">" * 32)
    with pytest.raises(ValueError, match="column 'a' has more than 60 types in one another: flatten them"):
        Json("a " + "MAP<STRING, " * 31 + "INT" + ">" * 31)


@pytest.mark.parametrize("kind", [">", "a: b", "struct<a: b>>, a: b"])
def test_a_text_that_is_no_type_is_left_to_what_reads_it(kind: str) -> None:
    with pytest.raises(ValueError, match="there is no type"):
        arrow_schema(Json(columns=[("a", kind)]).columns)
