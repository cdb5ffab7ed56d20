"""Fuzz the reading of CSV and of log lines into columns: a record is taken or not whatever stands beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from forebay_contrib.csv_records.declaration import Csv
from forebay_contrib.csv_records.reader import CsvReader
from forebay_contrib.log_lines.declaration import Logfmt, Regex
from forebay_contrib.log_lines.logfmt_reader import LogfmtReader
from forebay_contrib.log_lines.regex_reader import RegexReader
from receiver_runtime.block_path.text_check import TextCheck
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from receiver_runtime.record_formats.text_reader import TextReader

_DDL = "a STRING, b BIGINT NOT NULL, c DOUBLE, d TIMESTAMP, e BOOLEAN, f DECIMAL(5, 2), g DATE, h TIMESTAMP_NTZ"
_TIMES = {"h": "%d/%b/%Y:%H:%M:%S.%f"}
_CSV = CsvReader(Csv(_DDL, times=_TIMES))
_LOGFMT = LogfmtReader(Logfmt(_DDL, times=_TIMES))
_NGINX = RegexReader(Regex.nginx())
_SYSLOG = RegexReader(Regex.syslog())
_WORDS = [b"0x1F", b"nan", b"1e999", b"1e-999", b"9223372036854775808", b"2026-02-30", b"\xf0\x9f", b"\r\n", b"\t"]
_LONG = b"1" * 200_000


def _check(reader: TextReader, record: bytes, good: bytes, bad: bytes) -> None:
    text = TextCheck(reader.schema)
    alone = reader.read(pa.array([record], pa.binary()))
    assert alone.batch.num_rows + len(alone.faults) == 1
    assert text.is_valid(alone.batch)
    assert all(len(fault.why) < 250 for fault in alone.faults)
    beside = reader.read(pa.array([good, record, bad, None, good], pa.binary()))
    assert [fault.row for fault in beside.faults] == [*(1 for _ in alone.faults), 2]
    assert [fault.why for fault in beside.faults[:-1]] == [fault.why for fault in alone.faults]
    assert beside.batch.num_rows == 3 + alone.batch.num_rows
    assert beside.batch.slice(1, alone.batch.num_rows).equals(alone.batch)


@fuzzed(
    "csv_records",
    valid=[
        b"beside,1,,,,,,",
        b'"say ""so"", please",-5,1.5,2026-01-02T03:04:05.678+01:00,true,1.25,2026-02-28,28/Feb/2026:01:02:03.4',
        b'"two\nlines",1,1e-5,,FALSE,,,"01/mar/2024:23:59:59.000001"\r\n',
    ],
    words=[*_WORDS, b'""', b'",', b',"'],
    attacks=[b'"' * 100_001, b"," * 100_000, _LONG, b"x,1" + _LONG],
)
def test_a_record_of_csv_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    _check(_CSV, record, b"beside,1,,,,,,", b'"')


@fuzzed(
    "logfmt_records",
    valid=[
        b"a=beside b=1",
        b'a="say \\"so\\"" b=-5 c=1.5 d=2026-01-02T03:04:05.678+01:00 e f=1.25 g=2026-02-28 h=28/Feb/2026:01:02:03.4 x',
        b'b=1 a="" e=FALSE c= other="\\u00e9 \\\\"\r\n',
    ],
    words=[*_WORDS, b'\\"', b'="', b"b=2", b"\\ud83d", b"= ", b"\\\\"],
    attacks=[b'"' * 100_001, b"=" * 100_000, b"a " * 50_000, b'a="' + b"\\" * 100_000 + b'"', b"b=" + _LONG],
)
def test_a_line_of_pairs_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    _check(_LOGFMT, record, b"a=beside b=1", b'"')


_ACCESS = b'10.0.0.7 - ann [01/Jan/2026:12:00:01 +0100] "GET /a HTTP/1.1" 200 12 "https://example.org/" "curl/8" "-"'


@fuzzed(
    "access_log_records",
    valid=[_ACCESS, rb'::1 - - [01/Jan/2026:12:00:01 +0000] "\x16\x03\x01" 400 157 "-" "-"'],
    words=[*_WORDS, b'"-"', b" - ", b"[", b"]"],
    attacks=[b" " * 100_000, _ACCESS + b'"' * 100_000, b"- " * 50_000],
)
def test_a_line_of_an_access_log_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    _check(_NGINX, record, _ACCESS, b"")


_MESSAGE = b'<165>1 2003-10-11T22:14:15.003Z host app 12 ID47 [id@1 a="3" b="\\"\\]"][x] \xef\xbb\xbfmessage'


@fuzzed(
    "syslog_line_records",
    valid=[_MESSAGE, b"<0>1 - - - - - -"],
    words=[*_WORDS, b"[", b'="', b'"]', b"\\"],
    attacks=[b"<1>1 - - - - - " + b"[a]" * 30_000, b"<1>1 - - - - - [a" + b' b="' * 30_000],
)
def test_a_line_of_syslog_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    _check(_SYSLOG, record, _MESSAGE, b"")
