"""Test that lines of pairs become what a parser of single characters makes of them, each by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.log_lines.declaration import Logfmt
from forebay_contrib.log_lines.logfmt_reader import LogfmtReader
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tests.fuzz.target import count_steps
from tests.support.searches import examples
from tests.support.typed_text import DDL, NAMES, READ, rows

if TYPE_CHECKING:
    from receiver_runtime.record_formats.record_reader import Parsed

UNPARSABLE, DOES_NOT_FIT = DeadLetterReason.UNPARSABLE, DeadLetterReason.DOES_NOT_FIT
READER = LogfmtReader(Logfmt(DDL))
FEW = LogfmtReader(Logfmt("a STRING, ab STRING, b BOOLEAN"))


def read(*values: bytes | None, reader: LogfmtReader = READER) -> Parsed:
    return reader.read(pa.array(values, pa.binary()))


def pairs(line: str) -> list[tuple[str, str | None, bool]]:  # noqa: C901  one state after the other
    """Return the pairs of a line, each with whether its value was in quotes; no value: None. Raises ValueError."""
    line = line.removesuffix("\n").removesuffix("\r")
    found: list[tuple[str, str | None, bool]] = []
    at = 0
    while at < len(line):
        if line[at] in " \t":
            at += 1
            continue
        begin = at
        while at < len(line) and line[at] not in " \t=":
            at += 1
        key = line[begin:at]
        if not key or '"' in key:
            raise ValueError(line)
        if at == len(line) or line[at] != "=":
            found.append((key, None, False))
            continue
        begin = at = at + 1
        if line[at : at + 1] == '"':
            at += 1
            while line[at : at + 1] != '"':
                if at >= len(line):
                    raise ValueError(line)
                at += 2 if line[at] == "\\" else 1
            found.append((key, line[begin + 1 : at], True))
            at += 1
            if at < len(line) and line[at] not in " \t":
                raise ValueError(line)
        else:
            while at < len(line) and line[at] not in " \t":
                at += 1
            if '"' in line[begin:at]:
                raise ValueError(line)
            found.append((key, line[begin:at], False))
    return found


def expected(line: str, kinds: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row of a line; None if it does not fit."""
    row = dict.fromkeys(kinds)
    try:
        found = [one for one in pairs(line) if one[0] in kinds]
        if len({key for key, _, _ in found}) < len(found):
            return None
        for key, text, quoted in found:
            if text is None:
                if kinds[key] is not READ["paid"]:
                    return None
                row[key] = True
                continue
            value = json.loads(f'"{text}"', strict=False) if quoted and "\\" in text else text
            value.encode()
            row[key] = kinds[key](value) if value or (quoted and kinds[key] is str) else None
    except ValueError:
        return None
    return row


def check(lines: list[str], reader: LogfmtReader, kinds: dict[str, Any]) -> None:
    parsed = read(*(line.encode() for line in lines), reader=reader)
    made = [expected(line, kinds) for line in lines]
    assert parsed.batch.to_pylist() == [row for row in made if row is not None]
    assert [fault.row for fault in parsed.faults] == [number for number, row in enumerate(made) if row is None]


@st.composite
def typed_lines(draw: st.DrawFn) -> str:
    parts = []
    for name, text in draw(rows()).items():
        if any(character in text for character in ' "\t=\r\n') or draw(st.integers(0, 3)) == 0:
            parts.append(f"{name}={json.dumps(text, ensure_ascii=draw(st.booleans()))}")
        else:
            parts.append(f"{name}={text}")
    parts += draw(st.lists(st.sampled_from(["more=1", "bare", 'told="a b"', "text", "paid", "x=é"]), max_size=2))
    return draw(st.sampled_from([" ", "  ", "\t"])).join(draw(st.permutations(parts)))


@settings(max_examples=examples(600))
@given(st.lists(typed_lines(), max_size=8))
@pytest.mark.search
def test_values_are_those_that_python_reads(lines: list[str]) -> None:
    check(lines, READER, {name: READ[name] for name in NAMES})


@pytest.mark.parametrize("end", ["\\", "\\\\", "\\\\\\", "\\\\\\\\", "n\\\\"])
def test_backslashes_before_a_quote_are_counted(end: str) -> None:
    line = f'a="{end}" ab="x y"'
    check([line, "a=b", line + " b", f"a={end}"], FEW, {"a": str, "ab": str, "b": READ["paid"]})


def test_backslashes_cost_no_step_each() -> None:
    line = b'a="' + b"\\" * 20_000 + b'"'

    def check_line(_: bytes) -> None:
        assert read(line, reader=FEW).batch["a"].to_pylist() == ["\\" * 10_000]

    check_line(b"")
    count_steps(check_line, b"", 2000)


@settings(max_examples=examples(3000))
@given(st.lists(st.text('ab=" \\n\t\r\né', max_size=14), max_size=6))
@pytest.mark.search
def test_any_text_is_cut_as_single_characters_say(lines: list[str]) -> None:
    check(lines, FEW, {"a": str, "ab": str, "b": READ["paid"]})


@pytest.mark.parametrize(
    ("line", "reason", "said"),
    [
        (b'msg="a', UNPARSABLE, "a quote is not closed"),
        (b'msg=a"b"', UNPARSABLE, "a quote stands where none may"),
        (b'msg="a"b', UNPARSABLE, "a quote stands where none may"),
        (b'msg=\\"a', UNPARSABLE, "a quote stands where none may"),
        (b"=a", UNPARSABLE, "a value has no key"),
        (b'msg="\\x"', UNPARSABLE, "an escape is not one of JSON's - at `msg`"),
        (b'msg="\\ud800"', UNPARSABLE, "an escape is not one of JSON's - at `msg`"),
        (b"msg=\xff", UNPARSABLE, "no UTF-8 at byte 4"),
        (b"msg=a msg=a", DOES_NOT_FIT, "it stands twice - at `msg`"),
        (b"msg", DOES_NOT_FIT, "it has no value - at `msg`"),
        (b"msg=a took=fast", DOES_NOT_FIT, "'fast' is no DOUBLE - at `took`"),
        (b"took=1", DOES_NOT_FIT, "it is missing or empty - at `msg`"),
        (b"msg=", DOES_NOT_FIT, "it is missing or empty - at `msg`"),
        (b"", DOES_NOT_FIT, "it is missing or empty - at `msg`"),
    ],
)
def test_a_line_that_does_not_fit_says_why(line: bytes, reason: DeadLetterReason, said: str) -> None:
    reader = LogfmtReader(Logfmt("msg STRING NOT NULL, took DOUBLE"))
    parsed = read(b"msg=before", line, b'msg="and after"', reader=reader)
    assert parsed.batch["msg"].to_pylist() == ["before", "and after"]
    assert [(fault.row, fault.reason, fault.why) for fault in parsed.faults] == [(1, reason, said)]


def test_a_line_of_a_real_program_is_read() -> None:
    reader = LogfmtReader(Logfmt("ts TIMESTAMP, level STRING, msg STRING, duration STRING, cached BOOLEAN"))
    line = b"ts=2026-01-02T03:04:05.678Z caller=main.go:12 level=info duration=1.5ms cached "
    line += b'msg="GET \\"/a b\\" was served\\n"'
    [row] = read(line, reader=reader).batch.to_pylist()
    assert [str(value) for value in row.values()] == [
        "2026-01-02 03:04:05.678000+00:00",
        "info",
        'GET "/a b" was served\n',
        "1.5ms",
        "True",
    ]


def test_a_null_is_a_row_of_nulls_also_where_columns_are_required() -> None:
    reader = LogfmtReader(Logfmt("msg STRING NOT NULL"))
    assert read(None, b"msg=a", b'"', reader=reader).batch["msg"].to_pylist() == [None, "a"]


def test_a_declaration_is_the_same_when_it_is_read_back() -> None:
    declared = Logfmt("msg STRING NOT NULL", raw=True)
    assert Logfmt.model_validate(json.loads(json.dumps(declared.model_dump(mode="json")))) == declared
