"""Test JSON and CSV records: valid ones come out typed, invalid ones are kept as they came."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from forebay.parsing import (
    ParsingError,
    corrupt,
    from_csv_records,
    from_json_records,
    from_regex_records,
    well_formed,
)
from tests.support.searches import examples

if TYPE_CHECKING:
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
    with pytest.raises(ParsingError, match="'value' is a long, and text"):
        from_json_records(session.createDataFrame([(1,)], "value BIGINT"), SCHEMA)
    parsed = from_json_records(lines(session, "{}").selectExpr("value", "value AS more"), SCHEMA)
    with pytest.raises(ParsingError, match="well_formed"):
        from_json_records(parsed, "x INT", column="more")
    assert rows(from_json_records(well_formed(parsed), "x INT", column="more")) == [(None, None, None, None)]


CSV_GOOD = ["1,a", "2,", ',"b, c"']
CSV_BAD = ["x,d", "1", "1,a,more", "", "   "]


def test_valid_csv_is_typed_and_the_rest_is_kept_as_it_came(session: SparkSession) -> None:
    parsed = from_csv_records(lines(session, *CSV_GOOD, *CSV_BAD), SCHEMA)
    assert rows(well_formed(parsed)) == [(1, "a"), (2, None), (None, "b, c")]
    assert sorted(rows(corrupt(parsed))) == sorted((text,) for text in CSV_BAD)
    assert rows(well_formed(from_csv_records(lines(session, "1;a"), SCHEMA, options={"sep": ";"}))) == [(1, "a")]


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
    '{"name": {"x": 1e400}}',
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


# Without shrinking: each attempt is a job of Spark's, and the message names the text.
_PHASES = (Phase.explicit, Phase.generate)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-10000, 10000, places=3).map(float),
    st.text(st.sampled_from('a"\\/\u00e9\U0001f600\n\x7f,0'), max_size=6),
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), SCALARS | st.lists(SCALARS, max_size=2), max_size=5)
SCRAPS = st.sampled_from(["{", "}", "[", "]", ",", '"', " ", "\n", "x", "\\ud83d", "1", ":", "'", "nul", '{"id": 1}'])


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    """Draw an object as text, often with something put into it or cut off."""
    text = json.dumps(draw(OBJECTS), ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(SCRAPS) + text[at + draw(st.integers(0, 2)) :]
    return text


def same_in_json(kind: str, found: object, read: object) -> bool:
    """Return whether a column has what a second reader reads."""
    if read is None or found is None:
        return read is None and found is None
    if kind == "name":
        return found == read if isinstance(read, str) else json.loads(str(found)) == json.loads(json.dumps(read))
    if kind == "price":
        return found == Decimal(str(read))
    if kind == "amount":
        return found == float(str(read))
    return found == read and type(found) is type(read)


@pytest.mark.search
@settings(max_examples=examples(12), deadline=None, phases=_PHASES, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(json_texts(), min_size=100, max_size=200, unique=True))
def test_json_that_is_good_is_what_a_second_reader_reads(session: SparkSession, texts: list[str]) -> None:
    good = 0
    texts = [*texts, JSON_GOOD[0]]
    for text, row in zip(texts, from_json_records(lines(session, *texts), WIDE).collect(), strict=True):
        if row["_corrupt"] is not None:
            assert row["_corrupt"] == text
            continue
        good += 1
        read = json.loads(text)
        for name in NAMES:
            assert same_in_json(name, row[name], read.get(name)), (text, name, row[name])
    assert good


FIELDS = st.text(st.sampled_from('a",\n\r\\ 1.5'), max_size=5)


@st.composite
def csv_texts(draw: st.DrawFn) -> str:
    """Draw a line as the standard library writes it, often with something put into it."""
    file = io.StringIO()
    quoting: Literal[0, 1] = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    id_, amount = draw(st.integers(-5, 2**64).map(str)), draw(st.sampled_from(["1.5", "", "1e3", "1d", "x", "NaN"]))
    price = draw(st.decimals(-20000, 20000, places=draw(st.integers(0, 3)))) if draw(st.booleans()) else ""
    csv.writer(file, quoting=quoting).writerow([id_, draw(FIELDS), amount, draw(st.sampled_from(["true", ""])), price])
    text = file.getvalue().removesuffix("\r\n")
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(FIELDS) + text[at:]
    return text


def same_in_csv(kind: str, found: object, read: str) -> bool:
    if kind == "name":
        return (found or "") == read
    if found is None:
        return not read
    if kind == "ok":
        return str(found).lower() == read.lower()
    if kind == "amount":
        number = float(read)
        return found == number or (math.isnan(number) and isinstance(found, float) and math.isnan(found))
    return found == (int(read) if kind == "id" else Decimal(read))


@pytest.mark.search
@settings(max_examples=examples(12), deadline=None, phases=_PHASES, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(csv_texts(), min_size=100, max_size=200, unique=True))
def test_csv_that_is_good_is_what_a_second_reader_reads(session: SparkSession, texts: list[str]) -> None:
    good = 0
    texts = [*texts, CSV_KEPT[0]]
    for text, row in zip(texts, from_csv_records(lines(session, *texts), WIDE).collect(), strict=True):
        if row["_corrupt"] is not None:
            assert row["_corrupt"] == text
            continue
        good += 1
        [read] = csv.reader(io.StringIO(text, newline=""), strict=True)
        for name, field in zip(NAMES, read, strict=True):
            assert same_in_csv(name, row[name], field), (text, name, row[name])
    assert good


def test_a_record_that_is_null_is_corrupt_too(session: SparkSession) -> None:
    assert rows(corrupt(from_json_records(lines(session, None), SCHEMA))) == [("",)]
    assert rows(corrupt(from_csv_records(lines(session, None), SCHEMA))) == [("",)]


def test_a_wrong_schema_or_column_is_named(session: SparkSession) -> None:
    with pytest.raises(ParsingError, match=r"schema 'id BIGNT'.*'id BIGINT, name STRING'"):
        from_json_records(lines(session, "{}"), "id BIGNT")
    with pytest.raises(ParsingError, match="no column 'body' to parse: there are value"):
        from_json_records(lines(session, "{}"), SCHEMA, column="body")
    with pytest.raises(ParsingError, match="_corrupt is added"):
        from_csv_records(lines(session, ""), "id INT, _corrupt STRING")


NGINX = (
    r'(?P<remote>\S+) - (?<user>\S+) \[(?P<at>[^\]]+)\] "(?P<request>(?:[^"\\]|\\.)*)" '
    r"(?P<status>\d+) (?P<sent_bytes>\d+|-)"
)
ACCESS = "status INT, remote STRING, request STRING, user STRING, sent_bytes BIGINT, at TIMESTAMP"
LOG_OPTIONS = {"nullValue": "-", "timestampFormat": "dd/MMM/yyyy:HH:mm:ss Z"}


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
    ],
)
def test_a_pattern_that_cannot_work_is_refused(session: SparkSession, pattern: str, says: str) -> None:
    with pytest.raises(ParsingError, match=says):
        from_regex_records(lines(session, "x"), pattern, "a STRING")


@pytest.mark.search
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(texts=st.lists(st.text(st.sampled_from('ab1-"\\,\n=(é'), max_size=8), min_size=1, max_size=30))
def test_a_group_has_what_pythons_re_finds(session: SparkSession, texts: list[str]) -> None:
    pattern = r"(?P<key_1>[^=]*)=(?P<n>-?1*)(?P<rest>.*)"
    parsed = from_regex_records(lines(session, *texts), pattern, "key_1 STRING, n BIGINT, rest STRING")
    found = [re.fullmatch(rf"(?s:{pattern}?)\r?\n?", text) for text in texts]
    good = [(one["key_1"], int(one["n"] or 0), one["rest"]) for one in found if one and one["n"] != "-"]
    assert sorted((key, n or 0, rest) for key, n, rest in rows(well_formed(parsed))) == sorted(good)
    assert sorted(rows(corrupt(parsed))) == sorted(
        (t,) for t, one in zip(texts, found, strict=True) if not one or one["n"] == "-"
    )
