"""Test that log lines become what Python's patterns make of them, and that the ready patterns read real lines."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.log_lines.declaration import Regex
from forebay_contrib.log_lines.regex_reader import RegexReader
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tests.support.searches import examples
from tests.support.typed_text import DDL, NAMES, READ, rows

if TYPE_CHECKING:
    from receiver_runtime.record_formats.record_reader import Parsed

PATTERN = " ".join(rf"{name}\[(?P<{name}>.*?)\]" for name in NAMES)
READER = RegexReader(Regex(PATTERN, DDL))
TIME = "%d/%b/%Y:%H:%M:%S.%f %z"
TIMES = RegexReader(Regex("(?P<at>.*)", "at TIMESTAMP", times={"at": TIME}))


def read(records: Regex | RegexReader, *values: bytes | None) -> Parsed:
    reader = records if isinstance(records, RegexReader) else RegexReader(records)
    return reader.read(pa.array(values, pa.binary()))


def expected(line: str) -> dict[str, Any] | DeadLetterReason:
    match = re.fullmatch(PATTERN, line.removesuffix("\n").removesuffix("\r"))
    if match is None:
        return DeadLetterReason.UNPARSABLE
    try:
        return {name: READ[name](text) if text else None for name, text in match.groupdict().items()}
    except ValueError:
        return DeadLetterReason.DOES_NOT_FIT


@st.composite
def lines(draw: st.DrawFn) -> str:
    line = " ".join(f"{name}[{text}]" for name, text in draw(rows()).items())
    cut = draw(st.integers(0, len(line))) if draw(st.integers(0, 7)) == 0 else len(line)
    return line[:cut] + draw(st.sampled_from(["", "", "\n", "\r\n", "\n\n", " "]))


@settings(max_examples=examples(600))
@given(st.lists(lines(), max_size=8))
@pytest.mark.search
def test_groups_are_what_python_matches(drawn: list[str]) -> None:
    parsed = read(READER, *(line.encode() for line in drawn))
    made = [expected(line) for line in drawn]
    assert parsed.batch.to_pylist() == [row for row in made if isinstance(row, dict)]
    assert {fault.row: fault.reason for fault in parsed.faults} == {
        number: row for number, row in enumerate(made) if not isinstance(row, dict)
    }


_zones = st.sampled_from(["Z", "+0000", "-0730", "+14:00", "+2400", "+0160", "z", "0100", ""])
_days = st.dates().map(lambda day: day.strftime("%d/%b/") + f"{day.year:04}")
_numbers = st.builds(
    "{:02}/{}/{:04}".format,
    st.integers(0, 32),
    st.sampled_from(["Jan", "FEB", "apr", "Mai"]),
    st.sampled_from([0, 2023, 2024]),
)
_clocks = st.builds("{:02}:{:02}:{:02}".format, st.integers(0, 24), st.integers(0, 60), st.integers(0, 60))
_fractions = st.text("0123456789", min_size=0, max_size=7)
_times = st.builds("{}:{}.{} {}".format, _days | _numbers, _clocks, _fractions, _zones) | st.text(
    "0123456789/:Jan +", max_size=30
)


def time_of(text: str) -> datetime | None:
    match = re.fullmatch(
        r"([0-9]{2})/([A-Za-z]{3})/([0-9]{4}):([0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,6}) (Z|[+-][0-9]{2}:?[0-5][0-9])",
        text,
    )
    months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
    if match is None or match[2].lower() not in months:
        return None
    try:
        made = datetime.fromisoformat(
            f"{match[3]}-{months.index(match[2].lower()) + 1:02}-{match[1]}T{match[4]}{match[5]}"
        )
        return made.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def test_days_that_a_month_does_not_have_are_no_times() -> None:
    texts = [
        f"{day:02}/{month}/{year}:23:59:59.0 Z"
        for day in range(33)
        for month in ("Jan", "FEB", "apr", "Mai")
        for year in ("0000", "2023", "2024")
    ]
    # The last two are in the years 10000 and 0.
    texts += [f"31/Dec/9999:23:59:59.9 {zone}" for zone in ("Z", "+0100", "-0100")] + ["01/Jan/0001:00:59:59.9 +0100"]
    parsed = read(TIMES, *(text.encode() for text in texts))
    made = [time_of(text) for text in texts]
    assert parsed.batch["at"].to_pylist() == [time for time in made if time is not None]
    assert [fault.row for fault in parsed.faults] == [number for number, time in enumerate(made) if time is None]


@settings(max_examples=examples(2000))
@given(st.lists(_times, max_size=6))
@pytest.mark.search
def test_times_of_a_format_are_those_that_python_reads(texts: list[str]) -> None:
    texts = [text for text in texts if text.strip()]
    parsed = read(TIMES, *(text.encode() for text in texts))
    made = [time_of(text) for text in texts]
    assert parsed.batch["at"].to_pylist() == [time for time in made if time is not None]
    assert [fault.row for fault in parsed.faults] == [number for number, time in enumerate(made) if time is None]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(\d+)", "unnamed groups"),
        (r"(?=a)(?P<a>.)", r"\(\?="),
        (r"(?P<a>.)\1", "invalid escape"),
        (r"(?P<a>.)|)(", "unexpected|missing"),
        (r"(?P<b>.)", "no group for column 'a'"),
        (r"(?P<a>.)(?P<a>.)", "two groups"),
    ],
)
def test_a_pattern_that_can_not_be_is_refused_where_it_is_declared(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Regex(pattern, "a STRING")


def test_the_pattern_matches_all_of_a_line() -> None:
    parsed = read(
        Regex(r"(?P<a>\d+)|(?P<b>x+)", "a INT, b STRING"), b"1", b"xx", b"1x", b" 1", b"", b"2\r\n", None, b"\xff1"
    )
    assert parsed.batch.to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "xx"},
        {"a": 2, "b": None},
        {"a": None, "b": None},
    ]
    assert [(fault.row, fault.why) for fault in parsed.faults] == [
        *((row, "the pattern does not match all of it") for row in (2, 3, 4)),
        (7, "no UTF-8 at byte 0"),
    ]


def test_a_pattern_that_ends_pythons_parser_takes_linear_time() -> None:
    parsed = read(Regex(r"(?P<a>(?:a|a)*)b", "a STRING"), b"a" * 10_000)
    assert len(parsed.faults) == 1


NGINX = (
    b'10.0.0.7 - ann [01/Jan/2026:12:00:01 +0100] "GET /a?b=1 HTTP/1.1" 200 1234 "https://example.org/" "curl/8 (x)"'
)
NGINX_ROW = {
    "client": "10.0.0.7",
    "user": "ann",
    "time": datetime(2026, 1, 1, 11, 0, 1, tzinfo=UTC),
    "request": "GET /a?b=1 HTTP/1.1",
    "method": "GET",
    "path": "/a?b=1",
    "protocol": "HTTP/1.1",
    "status": 200,
    "size": 1234,
    "referrer": "https://example.org/",
    "agent": "curl/8 (x)",
}


def test_nginx_writes_an_access_log() -> None:
    odd = rb'::1 - - [01/Jan/2026:12:00:01 +0000] "\x16\x03\x01" 400 157 "-" "-" "1.2.3.4, 5.6.7.8"'
    parsed = read(Regex.nginx(), NGINX, odd, b"2026/01/01 12:00:01 [error] 31#31: *1 open() failed")
    first, second = parsed.batch.to_pylist()
    assert first == {**NGINX_ROW, "forwarded_for": None}
    assert {name: value for name, value in second.items() if value is not None and name != "time"} == {
        "client": "::1",
        "request": r"\x16\x03\x01",
        "status": 400,
        "size": 157,
        "forwarded_for": "1.2.3.4, 5.6.7.8",
    }
    assert [fault.row for fault in parsed.faults] == [2]


def test_apache_writes_common_and_combined_logs() -> None:
    common = b'127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326'
    combined = common.replace(b"2326", b"-") + rb' "http://www.example.com/start.html" "Mozilla/4.08 [en] \"x\""'
    parsed = read(Regex.apache(), common, combined, NGINX)
    first, second, third = parsed.batch.to_pylist()
    assert (first["time"], first["size"]) == (datetime(2000, 10, 10, 20, 55, 36, tzinfo=UTC), 2326)
    assert (first["referrer"], first["agent"]) == (None, None)
    assert (second["user"], second["size"], second["agent"]) == ("frank", None, r"Mozilla/4.08 [en] \"x\"")
    assert third == NGINX_ROW


def test_syslog_of_rfc_5424_has_the_examples_of_the_rfc() -> None:
    parsed = read(
        Regex.syslog(),
        b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed on /dev/pts/8",
        b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.",
        b'<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 [exampleSDID@32473 iut="3" '
        b'eventSource="Appli\\"ca\\]tion" eventID="1011"][examplePriority@32473 class="high"]',
        b"<0>1 - - - - - -",
        b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed",
    )
    first, second, third, fourth = parsed.batch.to_pylist()
    assert first == {
        "priority": 34,
        "timestamp": datetime(2003, 10, 11, 22, 14, 15, 3000, tzinfo=UTC),
        "hostname": "mymachine.example.com",
        "app_name": "su",
        "proc_id": None,
        "msg_id": "ID47",
        "structured_data": None,
        "message": "'su root' failed on /dev/pts/8",
    }
    assert (second["proc_id"], second["message"]) == ("8710", "%% It's time to make the do-nuts.")
    assert third["structured_data"].endswith('[examplePriority@32473 class="high"]')
    assert third["message"] is None
    assert {name for name, value in fourth.items() if value is not None} == {"priority"}
    assert [fault.row for fault in parsed.faults] == [4]


def test_syslog_of_rfc_3164_is_read_with_and_without_priority() -> None:
    parsed = read(
        Regex.syslog_3164(),
        b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
        b"Oct  1 22:14:15 host cron[12]: (root) CMD (x)",
        b"2024-01-02T03:04:05.123456+01:00 host kernel: [ 1.0] x",
        b"no log line",
    )
    assert [tuple(row.values()) for row in parsed.batch.to_pylist()] == [
        (34, "Oct 11 22:14:15", "mymachine", "su", None, "'su root' failed for lonvick on /dev/pts/8"),
        (None, "Oct  1 22:14:15", "host", "cron", "12", "(root) CMD (x)"),
        (None, "2024-01-02T03:04:05.123456+01:00", "host", "kernel", None, "[ 1.0] x"),
    ]
    assert [fault.row for fault in parsed.faults] == [3]


def test_a_ready_pattern_takes_the_columns_that_are_wanted() -> None:
    records = Regex.nginx("status SMALLINT NOT NULL, path STRING", raw=True)
    assert records.raw
    assert read(records, NGINX).batch.to_pylist() == [{"status": 200, "path": "/a?b=1"}]
    assert read(Regex.apache("time STRING"), NGINX).batch.to_pylist() == [{"time": "01/Jan/2026:12:00:01 +0100"}]


@pytest.mark.parametrize("records", [Regex.nginx(), Regex.apache(), Regex.syslog(), Regex.syslog_3164()])
def test_a_declaration_is_the_same_when_it_is_read_back(records: Regex) -> None:
    assert Regex.model_validate(json.loads(json.dumps(records.model_dump(mode="json")))) == records
