"""Test that classes become columns with their rules, and that what only the class could do is refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NaiveDatetime, PositiveInt, ValidationError

from receiver_runtime.record_formats.checked_json import CheckedJsonReader
from receiver_runtime.sources.records.json_records import Json
from tests.support.searches import examples


class Kind(StrEnum):
    NEW = "new"
    OLD = "old"


class Place(BaseModel):
    city: str
    code: Annotated[str, Field(pattern=r"^[0-9]{5}$")] | None = None


class Order(BaseModel):
    item: str = Field(min_length=1, max_length=3)
    pieces: PositiveInt
    price: Decimal | None = Field(None, max_digits=5, decimal_places=2, ge=Decimal("0.5"), lt=100)
    rate: Annotated[float, Field(gt=0, le=1.5)] | None = None
    at: AwareDatetime | None = None
    local: NaiveDatetime | None = None
    day: date | None = None
    paid: bool | None = None
    tags: list[Annotated[str, Field(max_length=2)]] | None = Field(None, max_length=2, description="of the item")
    place: Place | None = None
    places: list[Place | None] | None = Field(None, alias="Places")
    kind: Kind | None = None
    size: Literal["s", "l"] | None = None
    grade: Literal[1, 2] | None = None


COLUMNS = (
    ("item", "string"),
    ("pieces", "int64"),
    ("price", "decimal128(5, 2)"),
    ("rate", "double"),
    ("at", "timestamp[us, tz=UTC]"),
    ("local", "timestamp[us]"),
    ("day", "date32[day]"),
    ("paid", "bool"),
    ("tags", "list<item: string>"),
    ("place", "struct<city: string, code: string>"),
    ("Places", "list<item: struct<city: string, code: string>>"),
    ("kind", "string"),
    ("size", "string"),
    ("grade", "int64"),
)
READER = CheckedJsonReader(Json(Order))


def test_a_model_of_pydantic_becomes_columns() -> None:
    declared = Json(Order, raw=True)
    assert declared.columns == COLUMNS
    assert declared.required == ("item", "pieces")
    assert Json.model_validate(json.loads(json.dumps(declared.model_dump(mode="json")))) == declared


_place = st.fixed_dictionaries(
    {}, optional={"city": st.sampled_from(["x", 1]), "code": st.sampled_from(["12345", "1"])}
)
_records = st.fixed_dictionaries(
    {},
    optional={
        "item": st.text("aé", max_size=4) | st.just(1),
        "pieces": st.integers(-1, 3) | st.sampled_from(["1", 1.5, 2**63 - 1]),
        "price": st.sampled_from([0.5, 0.49, 1.25, 1.255, 99.99, 100, 1000, "1"]),
        "rate": st.sampled_from([0, 1, 1.5, 1.6, "1"]),
        "at": st.sampled_from(["2026-01-02T03:04:05Z", "2026-01-02T03:04:05", "now"]),
        "local": st.sampled_from(["2026-01-02T03:04:05Z", "2026-01-02T03:04:05"]),
        "day": st.sampled_from(["2026-01-02", "2026-02-30"]),
        "paid": st.booleans() | st.just(1),
        "tags": st.lists(st.sampled_from(["a", "ab", "abc", None, 1]), max_size=3),
        "place": _place,
        "Places": st.lists(_place | st.none(), max_size=2),
        "kind": st.sampled_from(["new", "NEW", 1]),
        "size": st.sampled_from(["s", "m"]),
        "grade": st.sampled_from([1, 3, "1"]),
        "more": st.just(1),
    },
)


@settings(max_examples=examples(3000))
@given(st.lists(_records, max_size=6))
@pytest.mark.search
def test_records_are_taken_as_pydantic_takes_them(records: list[dict[str, Any]]) -> None:
    records = [{"item": "a", "pieces": 1, **record} if number % 3 else record for number, record in enumerate(records)]
    made: list[dict[str, Any] | None] = []
    for record in records:
        try:
            made.append(Order.model_validate_json(json.dumps(record), strict=True).model_dump(by_alias=True))
        except ValidationError:
            made.append(None)
    parsed = READER.read(pa.array([json.dumps(record).encode() for record in records], pa.binary()))
    assert parsed.batch.to_pylist() == [one for one in made if one is not None]
    assert [fault.row for fault in parsed.faults] == [row for row, one in enumerate(made) if one is None]


@dataclass
class Sale:
    item: str
    pieces: Annotated[int, Field(ge=1)]
    at: datetime | None = None


class Told(TypedDict):
    item: str
    pieces: NotRequired[Annotated[int, msgspec.Meta(ge=1)]]


class Sent(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    item_name: str
    sent_at: Annotated[datetime, msgspec.Meta(tz=False)] | None = None
    sizes: list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None


def test_dataclasses_typed_dicts_and_structs_become_columns() -> None:
    assert Json(Sale).columns == (("item", "string"), ("pieces", "int64"), ("at", "timestamp[us, tz=UTC]"))
    assert Json(Sale).required == ("item", "pieces")
    assert [rule.rule for rule in Json(Sale).rules] == ["at_least"]
    assert (Json(Told).columns, Json(Told).required) == ((("item", "string"), ("pieces", "int64")), ("item",))
    sent = Json(Sent)
    assert sent.columns == (("itemName", "string"), ("sentAt", "timestamp[us]"), ("sizes", "list<item: string>"))
    assert [(rule.path, rule.rule) for rule in sent.rules] == [
        (("sizes", "[]"), "required"),
        (("sizes", "[]"), "min_length"),
    ]
    reader = CheckedJsonReader(sent)
    parsed = reader.read(pa.array([b'{"itemName": "a"}', b'{"itemName": "a", "x": 1}'], pa.binary()))
    assert parsed.batch.num_rows == 1
    assert [fault.why for fault in parsed.faults] == ["Object contains unknown field `x`"]


class Numbers(Enum):
    ONE = 1
    TWO = "two"


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (int | str, "several types"),
        (Any, "Any has no column"),
        (UUID, "UUID has no column"),
        (bytes, "bytes has no column"),
        (Decimal, "no digits"),
        (list, "list has no column"),
        (set[int], "has no column"),
        (tuple[int, ...], "has no column"),
        (dict[int, str], "has no column"),
        (Literal["a", 1], "not all texts"),
        (Numbers, "not all texts"),
        (Annotated[int, Field(multiple_of=2)], "multiple_of=2 can't be checked"),
        (Annotated[int, pydantic.AfterValidator(abs)], "AfterValidator can't be checked"),
        (Annotated[int, Field(ge=2**63)], "no int64 is at_least"),
        (Annotated[date, Field(ge=date(2026, 1, 1))], "no number"),
        (Annotated[Decimal, Field(max_digits=39, decimal_places=2)], r"no DECIMAL\(39, 2\)"),
        (pydantic.EmailStr, "EmailStr has no column"),
    ],
)
def test_a_type_that_has_no_column_is_refused_by_name(annotation: object, said: str) -> None:
    # Pydantic refuses some itself, and msgspec none until it decodes.
    made = msgspec.defstruct("Made", [("member", annotation)])
    with pytest.raises(ValueError, match=rf"Made\.member: .*{said}"):
        Json(made)


class Validated(BaseModel):
    item: str

    @pydantic.field_validator("item")
    @classmethod
    def _check(cls, value: str) -> str:
        return value


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    item: str


class Counted(BaseModel):
    pieces: int = 1


@dataclass
class Listed:
    tags: list[str] = field(default_factory=list)


class Nested(BaseModel):
    inner: list[Nested]


class HalfClosed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    place: Place


class Tagged(msgspec.Struct, tag=True):
    item: str


@pytest.mark.parametrize(
    ("given_class", "said"),
    [
        (Validated, "validator _check"),
        (Stripped, "setting str_strip_whitespace"),
        (Counted, "pieces: receivers do not fill in its default"),
        (Listed, "tags: receivers do not fill in its default"),
        (Nested, "Nested contains itself"),
        (HalfClosed, "HalfClosed refuses unknown members"),
        (Tagged, "Struct with a tag"),
        (int, "int is no pydantic model"),
    ],
)
def test_what_only_the_class_could_do_is_refused_by_name(given_class: type, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Json(given_class)


def test_a_pattern_that_re2_does_not_take_is_refused_where_it_is_declared() -> None:
    made = msgspec.defstruct("Made", [("member", Annotated[str, msgspec.Meta(pattern="(?=a)")])])
    with pytest.raises(ValueError, match="RE2"):
        Json(made)
