"""Test JSON and CSV records: valid ones come out typed, invalid ones are kept as they came."""

from __future__ import annotations

import base64
import csv
import dataclasses
import datetime as dt
import io
import json
import math
import re
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from forebay.parsing import corrupt, from_csv_records, from_json_records, from_regex_records, well_formed
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, name STRING"


def lines(session: SparkSession, *texts: str | None) -> DataFrame:
    return session.createDataFrame([(text,) for text in texts], "value STRING")


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame.collect()]


JSON_GOOD = ['{"id": 1, "name": "a"}', '{"name": "b"}', '{"id": 3, "name": "c", "more": [1]}', "{}"]
JSON_BAD = ["{", "", "  ", "null", "12", "[1]", '"text"', '{"id": "x", "name": "d"}', '{"id": 1} rest', "no"]


def test_valid_json_is_typed_and_the_rest_is_kept_as_it_came(session: SparkSession) -> None:
    parsed = from_json_records(lines(session, *JSON_GOOD, *JSON_BAD), SCHEMA)
    assert parsed.columns == ["id", "name", "_corrupt"]
    assert rows(well_formed(parsed)) == [(1, "a"), (None, "b"), (3, "c"), (None, None)]
    # Requested alone: a planner that prunes unused columns must not change which records are corrupt.
    assert sorted(rows(corrupt(parsed))) == sorted((text,) for text in JSON_BAD)
    assert corrupt(parsed).count() == len(JSON_BAD)


def test_bytes_are_parsed_as_text_and_other_columns_are_kept(session: SparkSession) -> None:
    """Check the rows of an Http stream: its `body` is bytes, and it has an `id` of its own."""
    bodies = ['{"id": 1, "name": "ü"}'.encode(), b'{"name": "\xfc"}', b"no", None]
    given = [(body, number, "of the request", {"k": "v"}) for number, body in enumerate(bodies)]
    frame = session.createDataFrame(given, "body BINARY, `a.b` INT, ID STRING, attributes MAP<STRING, STRING>")
    parsed = from_json_records(frame, SCHEMA, column="body")
    assert parsed.columns == ["id", "name", "a.b", "attributes", "_corrupt"]
    assert rows(well_formed(parsed)) == [(1, "ü", 0, {"k": "v"})]
    odd = "\\x" + bodies[1].hex()  # type: ignore[union-attr]
    assert rows(parsed.where("_corrupt IS NOT NULL").select("`a.b`", "_corrupt")) == [(1, odd), (2, "no"), (3, "")]
    lined = from_csv_records(frame.selectExpr("CAST('1,b' AS BINARY) AS body"), SCHEMA, column="body")
    assert rows(well_formed(lined)) == [(1, "b")] * len(bodies)


def test_a_column_that_is_no_text_or_that_is_there_already_is_refused(session: SparkSession) -> None:
    with pytest.raises(ValueError, match="'value' is a long, and text"):
        from_json_records(session.createDataFrame([(1,)], "value BIGINT"), SCHEMA)
    parsed = from_json_records(lines(session, "{}").selectExpr("value", "value AS more"), SCHEMA)
    with pytest.raises(ValueError, match="well_formed"):
        from_json_records(parsed, "x INT", column="more")
    assert rows(from_json_records(well_formed(parsed), "x INT", column="more")) == [(None, None, None, None)]


CSV_GOOD = ["1,a", "2,", ',"b, c"']
CSV_BAD = ["x,d", "1", "1,a,more", "", "   "]


def test_valid_csv_is_typed_and_the_rest_is_kept_as_it_came(session: SparkSession) -> None:
    parsed = from_csv_records(lines(session, *CSV_GOOD, *CSV_BAD), SCHEMA)
    assert rows(well_formed(parsed)) == [(1, "a"), (2, None), (None, "b, c")]
    assert sorted(rows(corrupt(parsed))) == sorted((text,) for text in CSV_BAD)
    # As Spark reads it: a backslash and a letter are one character.
    for sep, line in ((";", "1;a"), (r"\t", "1\ta"), (r"\\", r"1\a"), ("||", "1||a")):
        assert rows(well_formed(from_csv_records(lines(session, line), SCHEMA, options={"sep": sep}))) == [(1, "a")]


WIDE = "id BIGINT, name STRING, amount DOUBLE, ok BOOLEAN, price DECIMAL(6, 2)"
NAMES = ("id", "name", "amount", "ok", "price")
# What Spark's reader takes and changes, or takes only a part of.
JSON_CHANGED = [
    '{"id": 1}{"id": 2}',
    '{"id": 1}\n{"id": 2}',
    '{"id": 1}],[{}',
    '{"id": 1},{"id": 2}',
    "{'id': 1}",
    '{"name": "\\ud83d"}',
    '{"name": "a\\\\\\ud83d"}',
    '{"price": 1.005}',
    '{"amount": NaN}',
]
JSON_KEPT = ['{"name": "\\ud83d\\ude00"}', '{"name": "a\\\\ud83d"}', '{"price": 1.50}', '{"name": "Infinity"}']
CSV_CHANGED = [
    '1,"a"x,2,true,1',
    "1,a,1d,true,1",
    "1,a,2,true,1.005",
    '1,"a\\",b",2,true,1',
    '1,a,"2,true,1',
    "1,a,2,true,1\n\n",
]
CSV_KEPT = [
    '1,"a""b",2,true,1.50',
    '1,"a\r\nb",2,true,1',
    '1,"",2,true,1',
    "1,,2,true,1\r",
    '1,a"b,2,true,1',
    '1,"",,,',
]


def test_what_spark_would_change_is_corrupt(session: SparkSession) -> None:
    parsed = from_json_records(lines(session, *JSON_CHANGED, *JSON_KEPT), WIDE)
    assert sorted(rows(corrupt(parsed))) == sorted((text,) for text in JSON_CHANGED)
    parsed = from_csv_records(lines(session, *CSV_CHANGED, *CSV_KEPT), WIDE)
    assert sorted(rows(corrupt(parsed))) == sorted((text,) for text in CSV_CHANGED)
    good = well_formed(parsed).select("name").collect()
    assert [row.name for row in good] == ['a"b', "a\r\nb", "", None, 'a"b', ""]
    nested = "of STRUCT<price: DECIMAL(4, 1)>, more MAP<STRING, INT>"
    texts = ['{"of": {"price": 1.25}}', '{"of": {"price": 1.5}}']
    assert rows(corrupt(from_json_records(lines(session, *texts), nested))) == [(texts[0],)]


NESTED = "n INT, p STRUCT<a: INT, q: STRUCT<b: INT>>, `\u00e9` INT, s STRING, e ARRAY<STRUCT<a: INT>>"
JSON_TWICE = [
    '{"n": 1, "n": 2}',
    '{"n": 1, "n": null}',
    '{"n": null, "n": 1}',
    '{"n": 1, "\\u006e": 1}',
    '{"\u00e9": 1, "\\u00e9": 2}',
    '{"p": {"a": 1, "a": 2}}',
    '{"p": {"q": {"b": 1, "b": 1}}}',
    '{"p": null, "p": {"a": 1}}',
    '{"e": [null, {"a": 1}, {"a": 1, "x": [], "a": 1}]}',
    '{"s": {"a": 1, "a": 2}}',
    '{"x": 1, "x": 2}',
    '{"x": [[{"y": [], "y": 1e400}]], "n": 1}',
]
JSON_ONCE = [
    '{"n": 1, "N": 2, "p": {"n": 1}, "s": "n"}',
    '{"n": 1, "s": {"n": 1, "p": {"n": [{"n": 1}, {"n": 1}]}}, "p": null}',
    '{"e": [{"a": 1}, {"a": 1}, null], "x": {"e": "\\"n\\": 1, \\"n\\": 1"}}',
]


@pytest.mark.parametrize(
    ("option", "rewritten"),
    [
        ("allowSingleQuotes", lambda text: text.replace('"', "'").replace("{", "{'it\\'s': 1, ")),
        ("allowComments", lambda text: f"{text} // more"),
        ("allowNonNumericNumbers", lambda text: text.replace("{", '{"nan": NaN, ')),
        ("allowUnquotedFieldNames", lambda text: text.replace("{", "{other: 1, ")),
        ("allowUnquotedControlChars", lambda text: text.replace("{", '{"\x02a": "\x01", ')),
        ("allowBackslashEscapingAnyCharacter", lambda text: text.replace("{", '{"\\z": "\\q\\\\", ')),
    ],
)
def test_a_name_stands_once_in_an_object(session: SparkSession, option: str, rewritten: Callable[[str], str]) -> None:
    """Check also texts of other forms of JSON, of which no VARIANT is made."""
    twice, once = ([*all_, *map(rewritten, all_)] for all_ in (JSON_TWICE, JSON_ONCE))
    parsed = from_json_records(lines(session, *twice, *once), NESTED, options={option: "true"})
    assert rows(corrupt(parsed)) == [(text,) for text in twice]


# Without shrinking: each attempt is a job of Spark's, and the message names the text.
_PHASES = (Phase.explicit, Phase.generate)
# For each type: JSON's tokens of it that are equal to what is stored, and those that Spark takes and alters, or can't
# take. The first ones of the latter are in no other test.
TOKENS: dict[str, tuple[list[str], list[str]]] = {
    "STRING": (
        [
            '"a"',
            '""',
            '"<>"',
            '"<1>"',
            '"1.10"',
            "1.10",
            "1E400",
            "12345678901234567890",
            "true",
            '"\\ud83d\\ude00"',
            '{"x": 1.10, "<y>": ["\\"<5>\\"", 1e400, null, "\\\\", {}]}',
            "[]",
            '"\\u0022<>\\\\"',
            '"ü"',
        ],
        ['"\\ud83d"', "NaN", "[1e400,]", '{"x": Infinity}'],
    ),
    "TINYINT": (["1", "-0", "127"], ["128", "1.0", '"1"', "1e2", "true", '""']),
    "BIGINT": (["1", "-9223372036854775808", "9007199254740993"], ["9223372036854775808", "1.0", '"5"', "{}"]),
    "BOOLEAN": (["true", "false"], ['"true"', "1", "0.0"]),
    "DOUBLE": (
        ["0.1", "1", "-0.0", "1e308", "9007199254740992"],
        [
            "1e400",
            "1e-400",
            '"NaN"',
            "NaN",
            "-Infinity",
            '"Infinity"',
            "9007199254740993",
            "12345678901234567890",
            '"1.5"',
        ],
    ),
    "FLOAT": (["0.5", "0.1", "16777216"], ["1e39", "16777217", "1e-50", '"INF"', "Infinity"]),
    "DECIMAL(6, 2)": (
        ["1.5", "1.50", "-0.0", "9999.99", "150e-2", "1.5e2", '"1.5"', "0e-50", "1.000"],
        ["1.005", "10000", "1e-3", "0.0000001", "1e-400", '"1,000.5"', '"x"', "1e400", "0.004"],
    ),
    "DECIMAL(38, 10)": (["0.0000000001", "1234567890123456789012345678.1"], ["0.00000000011", "1e28", "1.00000000005"]),
    "DATE": (
        ['"2024-01-02"', '"2024-2-29"', '"0001-01-01"'],
        [
            '"2024-01-02 10:00"',
            '"2024"',
            '"2024-02-30"',
            '"19000"',
            '"2024-01-02T"',
            '"2024-01"',
            "20240102",
            '" 2024-01-02"',
            '""',
        ],
    ),
    "TIMESTAMP": (
        [
            '"2024-01-02 10:00:00.123456"',
            '"2024-01-02T10:00:00Z"',
            '"2024-01-02 10:00:00.120000000+01:00"',
            '"2024-01-02"',
            "1700000000",
            "-1",
        ],
        [
            '"12:00"',
            '"2024-01-02 10:00:00.1234567"',
            '"2024-01-02 10:00:00.1234567Z"',
            '"2024"',
            '"T12:00"',
            "1.5",
            "9223372036854775807",
            '"2024-01-02 10:00:00 rest"',
            '"1700000000"',
        ],
    ),
    "TIMESTAMP_NTZ": (
        ['"2024-01-02 10:00:00.123456"', '"2024-01-02T10:00:00"'],
        ['"2024-01-02 10:00:00.1234567"', '"12:00"', '"2024-01-02 10:00:00Z"', "1700000000"],
    ),
    "BINARY": (['"YWJj"', '""'], ['"YWJ"', '"%%%"', "1"]),
}
NAMES_OF_FIELDS = ("a", "B b", "c`'", "<>", "\u00e9")


Value: TypeAlias = Any  # whatever a reader returns


class Number(str):
    """The text of a number, as the standard library's reader hands it on."""

    __slots__ = ()


def read_json(text: str) -> object:
    def constant(name: str) -> object:
        raise ValueError(name)

    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=constant)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type: its DDL, what draws tokens of it, each with whether it is good, and what compares it."""

    ddl: str
    tokens: st.SearchStrategy[tuple[str, bool]]
    same: Callable[[Value, Value], bool]


def leaf(ddl: str) -> Kind:
    good, bad = TOKENS[ddl]
    # Nearly all are good: a document is good only if all of its tokens are.
    drawn = [st.sampled_from([(one, True) for one in good])] * 19 + [st.sampled_from([(one, False) for one in bad])]
    return Kind(ddl, st.one_of(st.just(("null", True)), *drawn), lambda found, read: same_value(ddl, found, read))


def array_of(of: Kind) -> Kind:
    tokens = st.lists(of.tokens, max_size=3).map(
        lambda all_: (f"[{' , '.join(token for token, _ in all_)}]", all(good for _, good in all_))
    )
    return Kind(
        f"ARRAY<{of.ddl}>",
        tokens,
        lambda found, read: (
            isinstance(read, list)
            and len(found) == len(read)
            and all(same(of, one, said) for one, said in zip(found, read, strict=True))
        ),
    )


def map_of(of: Kind) -> Kind:
    def text(all_: list[tuple[str, tuple[str, bool]]]) -> tuple[str, bool]:
        body = ",".join(f"{json.dumps(key)}:{token}" for key, (token, _) in all_)
        once = len({key for key, _ in all_}) == len(all_)
        return f"{{{body}}}", once and all(good for _, (_, good) in all_)

    keys = st.sampled_from(["a", '"', "<>", "", "1.10"])
    return Kind(
        f"MAP<STRING, {of.ddl}>",
        st.lists(st.tuples(keys, of.tokens), max_size=3).map(text),
        lambda found, read: (
            isinstance(read, dict)
            and found.keys() == read.keys()
            and all(same(of, found[key], read[key]) for key in read)
        ),
    )


def struct_of(kinds: list[Kind]) -> Kind:
    fields = dict(zip(NAMES_OF_FIELDS, kinds, strict=False))
    ddl = ", ".join(f"`{name.replace('`', '``')}` {kind.ddl}" for name, kind in fields.items())

    def text(drawn: list[tuple[str, bool] | None]) -> tuple[str, bool]:
        names = [*fields, *fields]
        given = [(name, one) for name, one in zip(names, drawn, strict=True) if one is not None]
        body = ", ".join([*(f"{json.dumps(name)} :{one[0]}" for name, one in given), '"else": [{"<>": 1.0}, "x"]'])
        once = len({name for name, _ in given}) == len(given)
        return f"{{{body}}}", once and all(good for _, (_, good) in given)

    once = [st.none() | kind.tokens for kind in fields.values()]
    # A second value of a name is drawn seldom, as what spoils a value is.
    again = [st.one_of(*[st.none()] * 39, one) for one in once]
    return Kind(
        f"STRUCT<{ddl}>",
        st.tuples(*once, *again).map(list).map(text),
        lambda found, read: (
            isinstance(read, dict) and all(same(kind, found[name], read.get(name)) for name, kind in fields.items())
        ),
    )


LEAVES = st.sampled_from(list(TOKENS)).map(leaf)


def nested(of: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return of | of.map(array_of) | of.map(map_of) | st.lists(of, min_size=1, max_size=2).map(struct_of)


KINDS = nested(nested(LEAVES))


def same(kind: Kind, found: Value, read: Value) -> bool:
    return (found is None and read is None) or (found is not None and read is not None and kind.same(found, read))


def same_value(ddl: str, found: Value, read: Value) -> bool:  # noqa: PLR0911  a row for each type
    """Return whether a value is what a second reader reads, and nothing of it was lost."""
    name = ddl.partition("(")[0]
    if name == "STRING":
        if isinstance(read, str):
            return bool(found == read)
        return bool(read_json(found) == read)
    if name in {"TINYINT", "BIGINT"}:
        return isinstance(read, Number) and found == int(read)
    if name in {"DOUBLE", "FLOAT"}:
        exact = Decimal(read)
        lost = math.isinf(found) or (found == 0) != (exact == 0)
        near = struct.unpack("f", struct.pack("f", float(read)))[0] if name == "FLOAT" else float(read)
        return isinstance(read, Number) and not lost and found == (int(read) if re.fullmatch(r"-?\d+", read) else near)
    if name == "DECIMAL":
        return bool(found == Decimal(read))
    if name == "BOOLEAN":
        return found is read
    if name == "BINARY":
        return bool(found == base64.b64decode(read, validate=True))
    if name == "DATE":
        return bool(found == dt.date(*map(int, read.split("-"))))
    if isinstance(read, Number):
        return int(found.replace(tzinfo=dt.UTC).timestamp()) == int(read)
    seconds, _, fraction = read.partition(".")
    digits = re.match(r"\d*", fraction)
    said = dt.datetime.fromisoformat(seconds + fraction[len(digits[0]) if digits else 0 :])
    said = (said if said.tzinfo else said.replace(tzinfo=dt.UTC)).astimezone(dt.UTC).replace(tzinfo=None)
    return (
        bool(found.replace(microsecond=0) == said)
        and found.microsecond == Decimal(f"0.{digits[0] if digits else ''}0") * 1_000_000
    )


def is_kept(kind: Kind, text: str, row: Value) -> bool:
    """Return whether a record is good, and then equal to what a second reader reads; else it is there as it came."""
    if row["_corrupt"] is not None:
        assert row["_corrupt"] == text
        return False
    assert kind.same(row, read_json(text)), (kind.ddl, text, row)
    return True


SCRAPS = st.sampled_from(["{", "}", "[", "]", ",", '"', " ", "\n", "x", "\\ud83d", "1", ":", "'", "nul", '{"a": 1}'])


@st.composite
def spoilt(draw: st.DrawFn, tokens: st.SearchStrategy[tuple[str, bool]]) -> tuple[str, bool | None]:
    """Draw a document, sometimes with something put into it or cut off; then it may be good or not."""
    text, good = draw(tokens)
    if draw(st.integers(0, 4)):
        return text, good
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(SCRAPS) + text[at + draw(st.integers(0, 2)) :], None


@pytest.mark.search
@settings(max_examples=examples(20), deadline=None, phases=_PHASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_json_that_is_good_is_what_a_second_reader_reads(session: SparkSession, data: st.DataObject) -> None:
    kind = data.draw(st.lists(KINDS, min_size=5, max_size=5).map(struct_of))
    # Of more documents nearly every draw would be given up: an example of hypothesis has a largest size.
    drawn = data.draw(st.lists(spoilt(kind.tokens), min_size=60, max_size=90, unique=True))
    schema = kind.ddl.removeprefix("STRUCT<").removesuffix(">")
    found = from_json_records(lines(session, *(text for text, _ in drawn)), schema).collect()
    for (text, is_good), row in zip(drawn, found, strict=True):
        assert is_kept(kind, text, row) is is_good or is_good is None, (schema, text, row)


def test_every_type_is_read_as_it_was_written_or_not_at_all(session: SparkSession) -> None:
    """Check each token of each type at the top, in an array, in a map and in a struct."""
    kinds = [leaf(ddl) for ddl in TOKENS]
    fields: dict[str, Kind] = {}
    for number, kind in enumerate(kinds):
        places = (kind, array_of(kind), map_of(kind), struct_of([kind]))
        fields |= {f"{place}{number}": one for place, one in zip("abcd", places, strict=True)}
    forms = {"a": "{}", "b": "[null, {}]", "c": '{{"k": {}}}', "d": '{{"a": {}}}'}
    asked = [
        (f'{{"{name}": {forms[name[0]].format(token)}}}', is_good, name)
        for name in fields
        for is_good, tokens in zip((True, False), TOKENS[list(TOKENS)[int(name[1:])]], strict=True)
        for token in tokens
    ]
    schema = ", ".join(f"{name} {kind.ddl}" for name, kind in fields.items())
    found = from_json_records(lines(session, *(text for text, _, _ in asked)), schema).collect()
    for (text, is_good, name), row in zip(asked, found, strict=True):
        assert row["_corrupt"] == (None if is_good else text), (fields[name].ddl, text, row[name])
        if is_good:
            read = read_json(text)
            assert isinstance(read, dict)
            assert same(fields[name], row[name], read[name]), (fields[name].ddl, text, row[name])


# The same for fields of CSV, where every field is text.
FIELDS: dict[str, tuple[list[str], list[str]]] = {
    "STRING": (
        ["a", "", 'a"b', '"', "a,b", "\r\n", "\n\n", " a ", "\\", '\\"', "1.10", "NaN", "\x00", "\ufeff", "#"],
        [],
    ),
    "TINYINT": (["1", "+1", "-0", "007", ""], ["128", "1.0", " 1", "\u0661", "x"]),
    "BIGINT": (["9007199254740993", ""], ["9223372036854775808", "1e2", "1,000"]),
    "BOOLEAN": (["true", "FALSE", ""], ["1", "yes", " true"]),
    "DOUBLE": (
        ["0.1", "1e308", "NaN", "-Infinity", ".5", ""],
        ["1e400", "1e-400", "1d", "0x1p3", "9007199254740993", "1,5"],
    ),
    "FLOAT": (["0.1", "Inf", ""], ["1e39", "16777217", "1e-50", "1f"]),
    "DECIMAL(6, 2)": (["1.5", "1.500", "150e-2", ""], ["1.005", "10000", "1,000.5", "1e-400", "NaN", "0.004"]),
    "DATE": (["2024-01-02", ""], ["2024-01-02 10:00", "2024", "12:00"]),
    "TIMESTAMP": (
        ["2024-01-02 10:00:00.123456", "2024-01-02T10:00:00Z", ""],
        ["12:00", "2024-01-02 10:00:00.1234567", "2024-01-02 10:00:00.1234567Z", "2024", "1700000000"],
    ),
    "TIMESTAMP_NTZ": (
        ["2024-01-02 10:00:00.123456", ""],
        ["2024-01-02 10:00:00.1234567", "12:00", "2024-01-02 10:00:00Z"],
    ),
}
_WORDS = {"NaN": math.nan, "Inf": math.inf, "-Infinity": -math.inf}
FORMS_OF_CSV: list[tuple[dict[str, str], dict[str, Value]]] = [
    ({}, {}),
    ({"sep": ";"}, {"delimiter": ";"}),
    ({"quote": "'"}, {"quotechar": "'"}),
    ({"escape": "\\"}, {"escapechar": "\\", "doublequote": False}),
    ({"quote": ""}, {"quoting": csv.QUOTE_NONE}),
]


def field_of(ddl: str) -> st.SearchStrategy[tuple[str, bool]]:
    good, bad = FIELDS[ddl]
    goods, bads = (
        st.sampled_from([(one, True) for one in good]),
        st.sampled_from([(one, False) for one in bad or ["x"]]),
    )
    return st.one_of(*[goods] * 19, bads if bad else goods)


def same_field(ddl: str, found: Value, read: str) -> bool:
    """Return whether a column has what a second reader reads; a field with nothing in it is null."""
    if ddl == "STRING":
        return (found or "") == read
    if found is None:
        return not read
    if ddl == "BOOLEAN":
        return str(found).lower() == read.lower()
    if ddl in {"DOUBLE", "FLOAT"} and read in _WORDS:
        return repr(found) == repr(_WORDS[read])
    is_number = ddl in {"TINYINT", "BIGINT", "DOUBLE", "FLOAT", "DECIMAL(6, 2)"}
    return same_value(ddl, found, Number(read) if is_number else read)


@st.composite
def csv_texts(draw: st.DrawFn, ddls: list[str], form: dict[str, Value]) -> tuple[str, bool | None]:
    """Draw a line as the standard library writes it, sometimes with something put into it."""
    drawn = [draw(field_of(ddl)) for ddl in ddls]
    file = io.StringIO()
    quoting = form.get("quoting", draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])))
    fields = [field for field, _ in drawn]
    try:
        csv.writer(file, **{**form, "quoting": quoting}).writerow(fields)
    except csv.Error:
        # It can't be written without quotes.
        return ",".join(fields), None
    text, spoils = file.getvalue().removesuffix("\r\n"), draw(st.integers(0, 4)) == 0
    if spoils:
        at = draw(st.integers(0, len(text)))
        # No digits: they may make a year that Spark has and Python has not.
        text = text[:at] + draw(st.text(st.sampled_from("a\",\n\r\\ .;'"), max_size=5)) + text[at:]
    # A record is one line, and readers differ in quotes within a field that has none around it.
    # A pair of quotes is an empty text, which is of no other type.
    is_empty = "" in fields and (quoting == csv.QUOTE_ALL or len(fields) == 1)
    is_plain = not spoils and not is_empty and text.strip() and not ({"quoting", "escapechar"} & form.keys())
    # Spark leaves out a NUL in a last field with quotes.
    is_plain = is_plain and "\0" not in fields[-1] and not text.startswith("\ufeff")
    return text, all(good for _, good in drawn) if is_plain else None


@pytest.mark.search
@settings(max_examples=examples(12), deadline=None, phases=_PHASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_csv_that_is_good_is_what_a_second_reader_reads(session: SparkSession, data: st.DataObject) -> None:
    ddls = data.draw(st.lists(st.sampled_from(list(FIELDS)), min_size=1, max_size=6))
    options, form = data.draw(st.sampled_from(FORMS_OF_CSV))
    drawn = data.draw(st.lists(csv_texts(ddls, form), min_size=60, max_size=240, unique=True))
    schema = ", ".join(f"c{number} {ddl}" for number, ddl in enumerate(ddls))
    found = from_csv_records(lines(session, *(text for text, _ in drawn)), schema, options=options).collect()
    for (text, is_good), row in zip(drawn, found, strict=True):
        assert is_good is None or (row["_corrupt"] is None) is is_good, (schema, options, text, row)
        if row["_corrupt"] is not None:
            assert row["_corrupt"] == text
            continue
        [read] = csv.reader(io.StringIO(text, newline=""), strict=True, **form)
        for ddl, value, field in zip(ddls, row, read, strict=False):
            assert same_field(ddl, value, field), (schema, options, text, row)
        assert len(read) == len(ddls)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({}, ['"\0"', '"a\0"', 'x,"\0b"\r\n', 'x,"a""\0""b"', '"""",",\0"']),
        ({"quote": "'", "escape": "\\"}, ["x,'\0\\'b'", "'\0'"]),
    ],
)
def test_a_nul_that_sparks_reader_leaves_out_is_corrupt(
    session: SparkSession, options: dict[str, str], texts: list[str]
) -> None:
    """Check with NULs that it reads: in a field without quotes, and in one before the last."""
    read = ['\0,"a"', '"\0",""', "x,\0", '"a\0",b'] if not options else ["\0,'a'", "x,\0"]
    schema = "c0 STRING, c1 STRING"
    for text, row in zip(
        [*texts, *read], from_csv_records(lines(session, *texts, *read), schema, options=options).collect(), strict=True
    ):
        assert row["_corrupt"] == (text if text in texts else None), (text, row)
    [row] = from_regex_records(lines(session, "a b\0"), r"(?P<c0>\w) (?P<c1>.*)", schema).collect()
    assert row["_corrupt"] == "a b\0"
    texts = ["\0,x", "x,\0", "\0a,b\0"]
    assert rows(corrupt(from_csv_records(lines(session, *texts, "x,b"), schema, options={"quote": ""}))) == [
        (text,) for text in texts
    ]


def test_every_field_of_csv_is_read_as_it_was_written_or_not_at_all(session: SparkSession) -> None:
    """Check each field of each type, also as the group of a pattern."""
    schema = ", ".join(f"c{number} {ddl}" for number, ddl in enumerate(FIELDS))
    asked = [
        (number, ddl, field, is_good)
        for number, ddl in enumerate(FIELDS)
        for is_good, fields in zip((True, False), FIELDS[ddl], strict=True)
        for field in fields
    ]
    texts = []
    for number, _, field, _ in asked:
        file = io.StringIO()
        csv.writer(file).writerow(
            ["x" if at == 0 else "" for at in range(number)] + [field] + [""] * (len(FIELDS) - number - 1)
        )
        texts.append(file.getvalue())
    pattern = "\x02".join(f"(?P<c{number}>[^\x02]*)" for number in range(len(FIELDS)))
    of_pattern = [
        "\x02".join(field if at == number else "" for at in range(len(FIELDS))) for number, _, field, _ in asked
    ]
    for expected, parsed in (
        (texts, from_csv_records(lines(session, *texts), schema)),
        (of_pattern, from_regex_records(lines(session, *of_pattern), pattern, schema)),
    ):
        for (number, ddl, field, is_good), text, row in zip(asked, expected, parsed.collect(), strict=True):
            # Spark's reader takes it away from a line's beginning.
            is_good = is_good and not (expected is texts and text.startswith("\ufeff"))  # noqa: PLW2901
            assert row["_corrupt"] == (None if is_good else text), (ddl, field, row)
            assert not is_good or same_field(ddl, row[number], field), (ddl, field, row)


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize(
    ("session_zone", "options", "good", "bad"),
    [
        (
            "Europe/Berlin",
            {},
            [
                "2024-03-31 03:30:00",
                "2024-03-31 02:30:00Z",
                "2024-03-31",
                "2024-10-27 02:30",
                "2024-03-31 02:30:00 UTC",
            ],
            [
                "2024-03-31 02:30:00",
                "2024-03-31T02:30",
                "2024-03-10 02:30:00 America/New_York",
                "2024-03-31 02:30:00 CET",
            ],
        ),
        ("UTC", {"timeZone": "Europe/London"}, ["2024-03-31 02:30", "2024-03-31 01:30:00+00:00"], ["2024-03-31 01:30"]),
        (
            "UTC",
            {},
            ["2024-03-10T03:30:00 America/New_York", "2024-01-01 01:01:01 EST5EDT", "2024-01-01 01:01:01MST"],
            [
                "2024-03-10T02:30:00 America/New_York",
                "2024-01-01 01:01:01 X",
                # Names of several zones, of which Java takes one.
                "2024-01-01 01:01:01 IST",
                "2024-01-01T01:01:01CST",
                "2024-01-01 01:01 BST",
            ],
        ),
        ("Europe/Berlin", {"timestampFormat": "dd.MM.yyyy HH:mm"}, ["31.03.2024 03:30"], ["31.03.2024 02:30"]),
        (
            "UTC",
            {"TimestampFormat": "dd.MMMM.yyyy HH:mm[ XXX]", "timezone": "Europe/London", "locale": "de"},
            ["31.März.2024 02:30", "31.März.2024 01:30 +00:00", "31.März.2024 01:30 -05:00"],
            ["31.März.2024 01:30"],
        ),
    ],
)
def test_a_time_that_the_clock_left_out_is_not_moved(
    session: SparkSession, form: str, session_zone: str, options: dict[str, str], good: list[str], bad: list[str]
) -> None:
    patterns, schema, read = {
        "json": (['{"a": "%s"}', '{"b": ["%s"]}'], "a TIMESTAMP, b ARRAY<TIMESTAMP>", from_json_records),
        "csv": (["%s"], "a TIMESTAMP", from_csv_records),
    }[form]
    texts = [pattern % one for pattern in patterns for one in (*good, *bad)]
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", session_zone)
    try:
        found = rows(corrupt(read(lines(session, *texts), schema, options=options)))
    finally:
        session.conf.set("spark.sql.session.timeZone", str(before))
    assert found == [(pattern % one,) for pattern in patterns for one in bad]


def test_a_format_with_a_zone_by_name_is_refused(session: SparkSession) -> None:
    for form in ("HH:mm z", "VV HH:mm"):
        with pytest.raises(ValueError, match="a zone by name"):
            from_json_records(lines(session, "{}"), "a TIMESTAMP", options={"timestampFormat": form})
    options = {"timestampFormat": "dd.MM.yyyy HH:mm 'z'", "timeZone": "UTC"}
    parsed = from_json_records(lines(session, '{"a": "01.02.2024 03:04 z"}'), "a TIMESTAMP", options=options)
    assert corrupt(parsed).count() == 0


def test_what_spark_can_not_read_or_tell_apart_is_refused_with_the_column(session: SparkSession) -> None:
    frame = lines(session, "{}")
    for schema, said in {
        "m MAP<INT, STRING>": "column m has a map with keys of the type int",
        "s STRUCT<a: ARRAY<MAP<DATE, INT>>>": r"column s\.a has a map with keys of the type date",
        "a INT, A STRING": "column A is there twice",
        "s STRUCT<a: INT, b: ARRAY<STRUCT<x: INT, X: INT>>>": r"column s\.b\.X is there twice",
        "a INT, _Corrupt STRING": "the column _corrupt is added",
    }.items():
        with pytest.raises(ValueError, match=said):
            from_json_records(frame, schema)
    for schema in ("a ARRAY<INT>", "a MAP<STRING, INT>", "a STRUCT<b: INT>"):
        with pytest.raises(ValueError, match=r"column a is .*, which neither CSV nor a pattern has"):
            from_csv_records(frame, schema)
    for read, name, said in (
        (from_json_records, "timestampFromat", r"'timestampFromat' for JSON: did you mean timestampFormat\?"),
        (from_csv_records, "nullVal", r"'nullVal' for CSV: did you mean nullValue\?"),
        (from_csv_records, "allowComments", "'allowComments' for CSV"),
    ):
        with pytest.raises(ValueError, match=f"options: Spark has no {said}"):
            read(frame, "a STRING", options={name: "x"})
    for read, name, value, said in (
        (from_json_records, "timeZone", "Mars/Phobos", "form 'area/city', such as 'America/Los_Angeles'"),
        (from_csv_records, "TIMEZONE", "+25:00", "from -18:00 to .18:00"),
        (from_csv_records, "timestampFormat", "%Y-%m-%d", "Fail to recognize '%Y-%m-%d' pattern"),
        (from_json_records, "dateFormat", "yyyy-bb", "Unrecognized datetime pattern: 'yyyy-bb'"),
        (from_json_records, "allowComments", "maybe", '"maybe"'),
        (from_json_records, "maxStringLen", "many", '"many"'),
    ):
        with pytest.raises(ValueError, match=rf"(?s)options: Spark takes no {name}='{re.escape(value)}' for .*{said}"):
            read(frame, "a TIMESTAMP", options={name: value, "mode": "PERMISSIVE"})
    with pytest.raises(ValueError, match="timeZone: IST has several meanings"):
        from_json_records(frame, "a TIMESTAMP", options={"timezone": "IST"})


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "csv"])
def test_records_of_many_columns_are_read(session: SparkSession, form: str) -> None:
    """Check that no expression becomes so deep with the columns that it ends the stack of Java, nor too large."""
    names = [f"c{number}" for number in range(700)]
    good = dict(zip(names, range(700), strict=True))
    texts = [
        json.dumps(one) if form == "json" else ",".join(map(str, one.values())) for one in (good, {**good, "c9": "x"})
    ]
    read = from_csv_records if form == "csv" else from_json_records
    found = read(lines(session, *texts), ", ".join(f"{name} INT" for name in names)).collect()
    assert [tuple(row)[:-1] for row in found] == [tuple(range(700)), (None,) * 700]
    assert [row["_corrupt"] for row in found] == [None, texts[1]]


def test_json_of_other_forms_is_read_if_asked_for_and_to_its_end(session: SparkSession) -> None:
    given = {
        "allowSingleQuotes": ("{'a': 'it', 'b': 1.5}", "{'a': 'it'} 'x'"),
        "allowComments": ('{"a": "//it", /* "b": 2 */ "b": 1.5} // "x"', '{"a": "it"} x // x'),
        "allowUnquotedFieldNames": ('{a: "it", b : 1.5}', '{a: "it"}, {b: 1}'),
        "allowNonNumericNumbers": ('{"a": "NaN", "b": NaN}', '{"b": 1e400}'),
        "allowNumericLeadingZeros": ('{"b": 007}', '{"b": 0x7}'),
    }
    for option, (good, bad) in given.items():
        parsed = from_json_records(lines(session, good, bad), "a STRING, b DOUBLE", options={option: "true"})
        assert rows(corrupt(parsed)) == [(bad,)], option
    assert rows(corrupt(from_json_records(lines(session, *(one for one, _ in given.values())), "b DOUBLE"))) == [
        (good,) for good, _ in given.values()
    ]


def test_what_is_not_the_callers_to_choose_stays(session: SparkSession) -> None:
    options = {"MODE": "FAILFAST", "columnnameofcorruptrecord": "a"}
    assert rows(corrupt(from_json_records(lines(session, "{"), "a INT", options=options))) == [("{",)]
    assert rows(corrupt(from_csv_records(lines(session, "x"), "a INT", options=options))) == [("x",)]
    with pytest.raises(ValueError, match="a variant is not parsed: write STRING"):
        from_json_records(lines(session, "{"), "a ARRAY<VARIANT>")


def test_a_long_record_is_read_or_corrupt_and_fails_no_batch(session: SparkSession) -> None:
    """Patterns that go back, or by recursion, would end the JVM's stack."""
    many = 20_000
    good = ['{"a": "%s"}' % ('\\"' * many), '{"a": [%s1]}' % ("1.10," * many), '{"a": {"b": "%s"}}' % ("\\\\" * many)]
    good.append(json.dumps({"a": 1} | {str(number): {} for number in range(many)}))
    bad = ['{"a": ' + "[" * many, '{"a": "' + '\\"' * many, '{"a": ' + "1" * many + "}"]
    bad.append(good[-1][:-1] + ', "a": 1}')
    assert rows(corrupt(from_json_records(lines(session, *good, *bad), "a STRING"))) == [(text,) for text in bad]
    good = ['"%s"' % ('""' * many), "x" * many]
    bad = ["," * many, '"%s' % ('""' * many), 'x"' * many + ",", "\n" * many]
    assert rows(corrupt(from_csv_records(lines(session, *good, *bad), "a STRING"))) == [(text,) for text in bad]


@pytest.mark.parametrize(
    ("options", "bad"),
    [
        ({}, ["," * 21_000, '""' + ',""' * 21_000]),
        ({"maxColumns": "1"}, ["1,a,b"]),
        ({"MaxCharsPerColumn": "5"}, ["1,abcdef", "1" * 6, '1,"a""bcde"']),
    ],
)
def test_a_line_beyond_a_bound_of_sparks_reader_is_corrupt_and_ends_no_batch(
    session: SparkSession, options: dict[str, str], bad: list[str]
) -> None:
    parsed = from_csv_records(lines(session, "1,abcde", *bad, '2,""'), SCHEMA, options=options)
    assert rows(parsed) == [(1, "abcde", None), *((None, None, text) for text in bad), (2, "", None)]


@pytest.mark.parametrize(
    ("pattern", "turn"),
    [
        (r'(?P<a>(?:[^"\\]|\\.)*+)', '\\"b'),
        (r'(?P<a>[^"\\]*+(?:\\.[^"\\]*+)*+)', '\\"b'),
        (r"(?P<a>(?:\w+ )++)", "ab "),
        (r"(?P<a>(?:[a-z] )*)", "a "),
        (r"(?P<a>([)*])*(x|y)?.*?)", "*)"),
    ],
)
def test_a_pattern_that_is_taken_ends_no_stack_by_a_long_record(session: SparkSession, pattern: str, turn: str) -> None:
    text = turn * 50_000
    assert rows(from_regex_records(lines(session, text), pattern, "a STRING")) == [(text, None)]


def test_a_long_field_behind_a_nul_ends_no_stack(session: SparkSession) -> None:
    text = '"\0' + "b" * 50_000 + '"'
    assert rows(corrupt(from_csv_records(lines(session, text), "a STRING"))) == [(text,)]


def test_a_comment_of_csv_is_corrupt_and_no_row_of_nulls(session: SparkSession) -> None:
    given = lines(session, "#1,a", '"#1",a', "1,#a")
    parsed = from_csv_records(given, "a STRING, b STRING", options={"Comment": "#"})
    assert rows(parsed) == [(None, None, "#1,a"), ("#1", "a", None), ("1", "#a", None)]
    assert rows(from_csv_records(given, "a STRING, b STRING").limit(1)) == [("#1", "a", None)]


@pytest.mark.parametrize("schema", ["a STRING", "a INT"])
def test_a_line_end_alone_is_blank(session: SparkSession, schema: str) -> None:
    blank = ["\n", "\r", "\r\n", " \n", ""]
    assert rows(corrupt(from_csv_records(lines(session, *blank, "1\r\n"), schema))) == [(one,) for one in blank]
    parsed = from_regex_records(lines(session, *blank), "(?P<a>.*)", schema)
    assert rows(corrupt(parsed)) == [(one,) for one in blank]


def test_csv_has_as_many_fields_as_the_schema_however_many(session: SparkSession) -> None:
    count = 60
    schema = ", ".join(f"c{number} STRING" for number in range(count))
    good, bad = ",".join(["x"] * count), ",".join(["x"] * (count + 1))
    parsed = from_csv_records(lines(session, good, bad), schema, options={"maxColumns": "10"})
    assert rows(parsed.select("c59", "_corrupt")) == [("x", None), (None, bad)]


def test_a_record_that_is_null_is_corrupt_too(session: SparkSession) -> None:
    assert rows(corrupt(from_json_records(lines(session, None), SCHEMA))) == [("",)]
    assert rows(corrupt(from_csv_records(lines(session, None), SCHEMA))) == [("",)]


def test_a_wrong_schema_or_column_is_named(session: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"schema 'id BIGNT'.*'id BIGINT, name STRING'"):
        from_json_records(lines(session, "{}"), "id BIGNT")
    with pytest.raises(ValueError, match="no column 'body' to parse: there are value"):
        from_json_records(lines(session, "{}"), SCHEMA, column="body")
    with pytest.raises(ValueError, match="_corrupt is added"):
        from_csv_records(lines(session, ""), "id INT, _corrupt STRING")


NGINX = (
    r'(?P<remote>\S+) - (?<user>\S+) \[(?P<at>[^\]]+)\] "(?P<request>(?:[^"\\]|\\.)*+)" '
    r"(?P<status>\d+) (?P<sent_bytes>\d+|-)"
)
ACCESS = "status INT, remote STRING, request STRING, user STRING, sent_bytes BIGINT, at TIMESTAMP"
LOG_OPTIONS = {"nullValue": "-", "timestampFormat": "dd/MMM/yyyy:HH:mm:ss Z"}


def test_a_number_is_a_time_in_seconds_and_one_of_milliseconds_is_none(session: SparkSession) -> None:
    good = ["-1", "1767225600", "-62135596800", "253402300799"]
    bad = ["-62135596801", "253402300800", "-86400000000", "1767225600000", "1767225600000000", "1767225600.5"]
    parsed = from_json_records(lines(session, *(f'{{"at": {one}}}' for one in [*good, *bad])), "at TIMESTAMP")
    assert rows(well_formed(parsed).selectExpr("unix_seconds(at)")) == [(int(one),) for one in good]
    assert rows(corrupt(parsed)) == [(f'{{"at": {one}}}',) for one in bad]


def test_log_lines_are_typed_by_their_groups_and_garbage_is_kept(session: SparkSession) -> None:
    good = [
        '10.0.0.1 - - [01/Jan/2026:12:00:01 +0100] "GET /a,b?q=""x HTTP/1.1" 200 17',
        '::1 - ann [01/Jan/2026:12:00:02 +0000] "" 404 -\n',
    ]
    good[0] = good[0].replace('""', "")
    bad = ["garbage", good[0] + " more", good[0].replace(" 200 ", " 99999999999 "), good[0].replace("Jan", "Foo"), ""]
    parsed = from_regex_records(lines(session, *good, *bad), NGINX, ACCESS, options=LOG_OPTIONS)
    assert [row[:5] for row in rows(well_formed(parsed))] == [
        (200, "10.0.0.1", "GET /a,b?q=x HTTP/1.1", None, 17),
        (404, "::1", "", "ann", None),
    ]
    assert rows(well_formed(parsed).selectExpr("unix_timestamp(at)")) == [(1767265201,), (1767268802,)]
    assert sorted(rows(corrupt(parsed))) == sorted((text,) for text in bad)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(?P<a>x", "missing \\)"),
        ("(?P<b>x)", "no group 'a': its groups are b"),
        ("x", "unnamed"),
        # Python takes these, and Java does not, or reads them otherwise.
        (r"\[(?P<a>[^[]+)\]", "Java, by which Spark matches, does not take it \\(Illegal"),
        (r"[^[(](?P<a>x)]", "sees 0 groups"),
        # By these a long record would end Java's stack.
        (r'x="(?P<a>(?:[^"\\]|\\.)*)"', r"write '\)\*\+'"),
        (r'(?P<a>[^"\\]*(?:\\.[^"\\]*)*)', "stack"),
        (r"(?P<a>(?:x|y)+?)", "stack"),
        (r"(?P<a>(?:\w+ ){2,})", "stack"),
        (r"(?P<a>([(]|(b)*)*)", "stack"),
    ],
)
def test_a_pattern_that_cannot_work_is_refused(session: SparkSession, pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_regex_records(lines(session, "x"), pattern, "a STRING")


@pytest.mark.search
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(texts=st.lists(st.text(st.sampled_from('ab1-"\\,\n=(é'), max_size=8), min_size=1, max_size=60))
def test_a_group_has_what_pythons_re_finds(session: SparkSession, texts: list[str]) -> None:
    pattern = r"(?P<key_1>[^=]*)=(?P<n>-?1*)(?P<rest>.*)"
    parsed = from_regex_records(lines(session, *texts), pattern, "key_1 STRING, n BIGINT, rest STRING")
    found = [re.fullmatch(rf"(?s:{pattern}?)\r?\n?", text) for text in texts]
    good = [(one["key_1"], int(one["n"] or 0), one["rest"]) for one in found if one and one["n"] != "-"]
    assert sorted((key, n or 0, rest) for key, n, rest in rows(well_formed(parsed))) == sorted(good)
    assert sorted(rows(corrupt(parsed))) == sorted(
        (t,) for t, one in zip(texts, found, strict=True) if not one or one["n"] == "-"
    )
