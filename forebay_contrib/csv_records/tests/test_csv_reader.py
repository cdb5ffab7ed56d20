"""Test that CSV becomes what a parser of single characters makes of it, and that no record affects another one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.csv_records.declaration import Csv
from forebay_contrib.csv_records.reader import CsvReader
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tests.support.searches import examples
from tests.support.typed_text import DDL, NAMES, READ, rows

if TYPE_CHECKING:
    from receiver_runtime.record_formats.record_reader import Parsed

UNPARSABLE, DOES_NOT_FIT = DeadLetterReason.UNPARSABLE, DeadLetterReason.DOES_NOT_FIT
READER = CsvReader(Csv(DDL))
PAIRS = CsvReader(Csv("a STRING, b STRING"))


def read(*values: bytes | None, reader: CsvReader = READER) -> Parsed:
    return reader.read(pa.array(values, pa.binary()))


def cut(record: str, separator: str = ",", quote: str = '"') -> list[tuple[str, bool]]:
    """Return the fields of a record, and whether each was in quotes. Raises ValueError."""
    record = record.removesuffix("\n").removesuffix("\r")
    found: list[tuple[str, bool]] = []
    at = 0
    while True:
        text = ""
        if quoted := record[at : at + 1] == quote:
            at += 1
            while True:
                end = record.index(quote, at)
                text += record[at:end]
                at = end + 1
                if record[at : at + 1] != quote:
                    break
                text += quote
                at += 1
        else:
            end = record.find(separator, at)
            end = len(record) if end < 0 else end
            text, at = record[at:end], end
        if quote in text and not quoted:
            raise ValueError(record)
        found.append((text, quoted))
        if at == len(record):
            return found
        if record[at] != separator:
            raise ValueError(record)
        at += 1


def expected(record: str, names: tuple[str, ...]) -> dict[str, Any] | DeadLetterReason:
    try:
        fields = cut(record)
    except ValueError:
        return UNPARSABLE
    if len(fields) != len(names):
        return DOES_NOT_FIT
    row = {}
    for name, (text, quoted) in zip(names, fields, strict=True):
        read_text = READ.get(name, str)
        try:
            row[name] = None if not text and not (quoted and read_text is str) else read_text(text)
        except ValueError:
            return DOES_NOT_FIT
    return row


def check(records: list[str], reader: CsvReader, names: tuple[str, ...]) -> None:
    parsed = read(*(record.encode() for record in records), reader=reader)
    made = [expected(record, names) for record in records]
    assert parsed.batch.to_pylist() == [row for row in made if isinstance(row, dict)]
    assert {fault.row: fault.reason for fault in parsed.faults} == {
        number: row for number, row in enumerate(made) if not isinstance(row, dict)
    }


@st.composite
def typed_records(draw: st.DrawFn) -> str:
    fields = []
    for text in draw(rows()).values():
        quoted = any(character in text for character in ',"\r\n') or draw(st.integers(0, 3)) == 0
        fields.append('"' + text.replace('"', '""') + '"' if quoted else text)
    return ",".join(fields) + draw(st.sampled_from(["", "", "\n", "\r\n"]))


@settings(max_examples=examples(600))
@given(st.lists(typed_records(), max_size=8))
@pytest.mark.search
def test_fields_are_the_values_that_python_reads(records: list[str]) -> None:
    check(records, READER, NAMES)


@settings(max_examples=examples(2000))
@given(st.lists(st.text('a,"\n\r é', max_size=12), max_size=6))
@pytest.mark.search
def test_any_text_is_cut_as_single_characters_say(records: list[str]) -> None:
    check(records, PAIRS, ("a", "b"))


@pytest.mark.parametrize(
    ("record", "reason", "said"),
    [
        (b"a", DOES_NOT_FIT, "1 fields, where 2 columns are declared"),
        (b"a,1,", DOES_NOT_FIT, "3 fields, where 2 columns are declared"),
        (b'"a,1', UNPARSABLE, "a quote is not closed"),
        (b'a"b",1', UNPARSABLE, "a quote stands where none may"),
        (b'"a"b,1', UNPARSABLE, "a quote stands where none may"),
        (b"a,\xff", UNPARSABLE, "no UTF-8 at byte 2"),
        (b"a,1.0", DOES_NOT_FIT, "'1.0' is no BIGINT - at `b`"),
        (b"a,9223372036854775808", DOES_NOT_FIT, "'9223372036854775808' is no BIGINT - at `b`"),
        (b"a,", DOES_NOT_FIT, "it is missing or empty - at `b`"),
        (b'a,""', DOES_NOT_FIT, "it is missing or empty - at `b`"),
    ],
)
def test_a_record_that_does_not_fit_says_why(record: bytes, reason: DeadLetterReason, said: str) -> None:
    reader = CsvReader(Csv("a STRING, b BIGINT NOT NULL"))
    parsed = read(b"before,1", record, b"after,2", reader=reader)
    assert parsed.batch.to_pylist() == [{"a": "before", "b": 1}, {"a": "after", "b": 2}]
    assert [(fault.row, fault.reason, fault.why) for fault in parsed.faults] == [(1, reason, said)]


def test_a_reason_has_a_long_value_shortened() -> None:
    [fault] = read(b"x" * 10_000, reader=CsvReader(Csv("a INT"))).faults
    assert len(fault.why) < 100


def test_a_null_is_a_row_of_nulls_also_where_columns_are_required() -> None:
    reader = CsvReader(Csv("a STRING NOT NULL, b INT"))
    for bad in ((), (b'"',)):
        assert read(None, b"x,1", *bad, reader=reader).batch.to_pylist() == [
            {"a": None, "b": None},
            {"a": "x", "b": 1},
        ]


def test_separator_and_quote_are_those_declared() -> None:
    reader = CsvReader(Csv("a STRING, b INT", separator="\t", quote="'"))
    assert read(b"'it''s, \t'\t1", reader=reader).batch.to_pylist() == [{"a": "it's, \t", "b": 1}]
    reader = CsvReader(Csv("a STRING, b INT", quote=""))
    assert read(b'a"b,1', reader=reader).batch.to_pylist() == [{"a": 'a"b', "b": 1}]


def test_times_may_have_a_format() -> None:
    reader = CsvReader(Csv("day DATE, at TIMESTAMP_NTZ", times={"day": "%d.%m.%Y", "at": "%Y-%m-%d %H:%M:%S,%f"}))
    parsed = read(b'31.12.2025,"2026-01-02 03:04:05,067"', b"30.02.2025,", b"1.2.2025,", reader=reader)
    assert [str(value) for value in parsed.batch.to_pylist()[0].values()] == [
        "2025-12-31",
        "2026-01-02 03:04:05.067000",
    ]
    assert [fault.why for fault in parsed.faults] == [
        "'30.02.2025' is no date - at `day`",
        "'1.2.2025' is no date - at `day`",
    ]


def test_many_records_with_some_bad_ones_keep_their_order() -> None:
    values = [b"%d" % number for number in range(20_000)]
    bad = [0, 8191, 8192, 15_000, 19_999]
    for row in bad:
        values[row] = b'"'
    parsed = read(*values, reader=CsvReader(Csv("a INT")))
    assert [fault.row for fault in parsed.faults] == bad
    assert parsed.batch["a"].to_pylist() == [number for number in range(20_000) if number not in bad]


def test_a_slice_is_read_as_its_own_rows() -> None:
    values = pa.array([b'"', b"1", None, b"2", b'"'], pa.binary())
    parsed = CsvReader(Csv("a INT")).read(values.slice(1, 3))
    assert (parsed.batch["a"].to_pylist(), parsed.faults) == ([1, None, 2], ())


def test_nothing_is_no_row() -> None:
    assert read().batch.num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"separator": ";;"}, "separator"),
        ({"separator": "\n"}, "separator"),
        ({"separator": '"'}, "quote too"),
        ({"quote": "é"}, "quote"),
        ({"times": {"a": "%Y"}}, "no column with times"),
        ({"times": {"at": "%Y-%m-%d"}}, "needs %z"),
        ({"times": {"at": "%Y-%j %z"}}, "%j"),
        ({"times": {"at": "%Y-%m %z"}}, "gives no time"),
        ({"header": "yes?"}, "header"),
    ],
)
def test_a_declaration_that_can_not_be_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Csv("a STRING, at TIMESTAMP", **arguments)


@pytest.mark.parametrize("kind", ["ARRAY<INT>", "STRUCT<a: INT>", "MAP<STRING, INT>", "BINARY"])
def test_a_type_that_text_has_no_value_of_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"'b'.*use STRING"):
        Csv(f"a STRING, b {kind}")


def test_a_declaration_is_the_same_when_it_is_read_back() -> None:
    declared = Csv("a STRING NOT NULL, at DATE", separator=";", times={"at": "%d.%m.%Y"}, raw=True)
    stored = json.loads(json.dumps(declared.model_dump(mode="json")))
    assert Csv.model_validate(stored) == declared
