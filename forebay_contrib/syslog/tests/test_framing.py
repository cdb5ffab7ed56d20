"""Check how streams become syslog messages, and messages become columns."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_contrib.syslog import framing as syslog_framing
from forebay_contrib.syslog import short_frames
from forebay_contrib.syslog.framing import SyslogFraming
from forebay_contrib.syslog.parsing import parse
from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tests.support.searches import examples

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver_runtime.receivers.framing import Taken

TOO_LARGE = DeadLetterReason.RECORD_TOO_LARGE
TRUNCATED = DeadLetterReason.TRUNCATED
LIMIT = 20
NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


def micros(when: datetime) -> int:
    return int(when.timestamp()) * 1_000_000


def counted(message: bytes) -> bytes:
    return b"%d %b" % (len(message), message)


def taken_of(framing: SyslogFraming, pieces: list[bytes], *, clean: bool = True) -> list[Taken]:
    splitter = framing.open()
    # Bytes behind the piece in the buffer are left over from an earlier read.
    takens: list[Taken] = [splitter.take(bytearray(piece + b"\n<1>old\n"), len(piece)) for piece in pieces]
    return [*takens, splitter.finish(clean=clean)]


def letters_of(pieces: list[bytes]) -> list[DeadLetter]:
    """Return the dead letters alone: parsing the records takes most of the time."""
    takens = taken_of(SyslogFraming(timezone="UTC", max_record_bytes=LIMIT), pieces)
    return [letter for taken in takens for letter in (*taken.before, *taken.after)]


def run(pieces: list[bytes], *, clean: bool = True, limit: int = LIMIT) -> tuple[list[bytes], list[DeadLetter]]:
    framing = SyslogFraming(timezone="UTC", max_record_bytes=limit, now=lambda: micros(NOW))
    records: list[bytes] = []
    letters: list[DeadLetter] = []
    for taken in taken_of(framing, pieces, clean=clean):
        letters += taken.before
        if taken.piece is not None:
            cut = framing.cut([taken.piece])
            assert cut.records is not None
            cut.records.validate(full=True)
            records += cut.records.column("raw").to_pylist()
        letters += taken.after
    return records, letters


class Model:
    """Do the same in plain Python: the messages, and how many became dead letters."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.records: list[bytes] = []
        self.aside = 0
        self.rest = b""
        self.was_counted = self.nul_ends = False
        self.ended_by = b""
        # The end of a line that is too large to be kept.
        self.passing: bytes | None = None

    def read(self, data: bytes) -> None:
        self.rest += data
        if self.passing is not None:
            found = re.search(self.passing, self.rest)
            if found is None:
                return
            self.aside, self.passing, self.ended_by, self.rest = (
                *(self.aside + 1, None),
                *(found[0], self.rest[found.end() :]),
            )
        self.walk(waits=not self.rest.endswith(b"\n"))
        kept = len(self.rest) > self.limit + 1
        if kept and not self.nul_ends and self.is_line():
            self.walk(waits=False)
        if len(self.rest) > self.limit + 1 and self.is_line():
            self.was_counted = False
            self.passing = TEXT
            if self.rest.startswith(b"<"):
                self.passing = DECISIVE if self.nul_ends else rb"\n|\0"

    def is_line(self) -> bool:
        return self.count() is None and not self.may_be_count()

    def count(self) -> tuple[int, int] | None:
        match = re.match(rb"([1-9][0-9]{0,8}) (.)", self.rest, re.DOTALL)
        if match is not None and (match[2] == b"<" or self.was_counted):
            return match.end(1) + 1, int(match[1])
        return None

    def may_be_count(self) -> bool:
        return re.fullmatch(rb"[1-9][0-9]{0,8} ?", self.rest) is not None

    def walk(self, *, waits: bool) -> None:
        while self.rest:
            counted = self.count()
            if counted is not None:
                begin, size = counted
                if len(self.rest) < begin + size:
                    return
                self.was_counted, self.ended_by = True, b""
                self.keep(self.rest[begin : begin + size])
                self.rest = self.rest[begin + size :]
            elif self.was_counted and self.rest[:1] in (b"\n", b"\0"):
                self.rest = self.rest[1:]
            else:
                end = None if self.may_be_count() else self.end(waits=waits)
                if end is None:
                    return
                self.end_line(end)

    def end(self, *, waits: bool) -> re.Match[bytes] | None:
        if not self.rest.startswith(b"<"):
            return re.search(TEXT, self.rest)
        end = re.search(DECISIVE, self.rest)
        if end is None:
            return None if waits or self.nul_ends else re.search(rb"\n", self.rest)
        # What follows says whether a NUL ends a message with newlines.
        is_odd = re.match(rb"$|[<\n\0]|[1-9][0-9]{0,8} <", self.rest[end.end() :]) is None
        if end[0] == b"\n" or (is_odd and b"\n" in self.rest[: end.start()]):
            return re.search(rb"\n", self.rest)
        return end

    def end_line(self, end: re.Match[bytes]) -> None:
        if self.rest.startswith(b"<"):
            self.nul_ends = end[0] == b"\0"
        line, self.rest, self.was_counted = self.rest[: end.start()], self.rest[end.end() :], False
        is_odd = self.ended_by not in (b"", end[0])
        self.ended_by = end[0]
        if line or not is_odd:
            self.keep((line.removesuffix(b"\n") if end[0] == b"\0" else line).removesuffix(b"\r"))

    def keep(self, message: bytes) -> None:
        if len(message) > self.limit:
            self.aside += 1
        else:
            self.records.append(message)

    def finish(self, *, clean: bool) -> None:
        if self.passing is not None:
            self.aside += 1
            return
        is_line = self.is_line()
        if is_line and not self.nul_ends:
            self.walk(waits=False)
        if self.rest and clean and (is_line or (self.may_be_count() and not self.was_counted)):
            self.keep(self.rest.removesuffix(b"\n").removesuffix(b"\r"))
        elif self.rest:
            self.aside += 1


TEXT = rb"\n|\0(?=<)"
DECISIVE = rb"\0|\n(?=<[0-9]|[1-9][0-9]{0,8} <)"


def model(*pieces: bytes, clean: bool = True, limit: int = LIMIT) -> tuple[list[bytes], int]:
    found = Model(limit)
    for piece in pieces:
        found.read(piece)
    found.finish(clean=clean)
    return found.records, found.aside


FRAMES = st.one_of(
    st.sampled_from(
        [
            b"<1>a\n",
            b"<1>a\0",
            b"<1>a\0\n",
            b"<1>a\nb\0",
            b"<1>a\n<b\nc\0",
            b"<1>a\n12 \0",
            b"<1>a\n\0",
            b"\0",
            b"<1>" + b"x" * 30 + b"\0",
            b"<13>a b\r\n",
            b"12 monkeys\n",
            b"\n",
            b"7\n",
            b"123456789012 <1>\n",
            b"<1>" + b"x" * 30 + b"\n",
        ]
    ),
    st.sampled_from(
        [counted(b"<1>a"), counted(b"<1>a\nb"), counted(b"no"), counted(b"<1>" + b"y" * 30), counted(b"<1>z") + b"\n"]
    ),
    st.binary(max_size=6),
)


@given(st.lists(FRAMES, max_size=8).map(b"".join), st.lists(st.integers(0, 150), max_size=6), st.booleans())
@example(b"5 <1>a", [1, 2, 3], True)  # noqa: FBT003
@example(b"4 <1>a4 <1>b\n<1>c\n12", [], False)  # noqa: FBT003
@example(b"x" * (LIMIT + 1), [], True)  # noqa: FBT003
@example(counted(b"<1>a") + b"x" * (LIMIT + 9) + b"\n\n", [LIMIT + 10], True)  # noqa: FBT003
@pytest.mark.search
@settings(max_examples=examples(400), deadline=None)
def test_a_stream_cut_in_any_way_gives_the_same(stream: bytes, cuts: list[int], clean: bool) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[begin:end] for begin, end in pairwise(places) if begin < end]
    records, letters = run(pieces, clean=clean)
    wanted, aside = model(*pieces, clean=clean)
    assert records == wanted
    assert len(letters) == aside


SHORT = st.sampled_from(
    [
        b"1 <",
        b"2 <1",
        b"1 x",
        counted(b"<1>a"),
        counted(b"a\n"),
        b"\n",
        counted(b"<" * 12),
        counted(b"y" * 120),
        b"<1>l\n",
    ]
)


@given(st.lists(SHORT, max_size=60).map(b"".join), st.integers(0, 200), st.integers(1, 40))
@pytest.mark.search
@settings(max_examples=examples(400), deadline=None)
def test_short_counted_frames_are_the_same_in_bulk(stream: bytes, cut: int, table: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(syslog_framing, "_DENSE_FRAMES", 2)
        patch.setattr(syslog_framing, "_DENSE_BYTES", 2**20)
        patch.setattr(short_frames, "_TABLE_BYTES", table)
        records, letters = run([piece for piece in (stream[:cut], stream[cut:]) if piece], limit=200)
    wanted, aside = model(*[piece for piece in (stream[:cut], stream[cut:]) if piece], limit=200)
    assert records == wanted
    assert len(letters) == aside


@pytest.mark.parametrize("frames", [b"1 <", b"1 x", b"1 <\n", b"1 <2 <a", b"9 123456789"])
def test_a_megabyte_of_tiny_counted_frames_is_read_in_bulk(frames: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at a time, they would take half a second of the thread that reads for all senders."""
    looked_at = 0
    look = syslog_framing._COUNTED

    def counting(data: bytes, place: int) -> re.Match[bytes] | None:
        nonlocal looked_at
        looked_at += 1
        return look(data, place)

    monkeypatch.setattr(syslog_framing, "_COUNTED", counting)
    splitter = SyslogFraming(timezone="UTC", max_record_bytes=LIMIT).open()
    stream = b"1 <" + frames * (2**20 // len(frames))
    taken = splitter.take(bytearray(stream), len(stream))
    assert taken.piece is not None
    assert taken.piece.ends is not None
    per_pattern = 2 if frames == b"1 <2 <a" else 1
    assert taken.piece.ends.size == 1 + 2**20 // len(frames) * per_pattern
    assert looked_at < 1000


def test_one_connection_may_mix_framings_and_a_counted_message_may_have_newlines() -> None:
    stream = b"<1>a\r\n" + counted(b"<2>b\nc") + counted(b"<3>d") + b"<4>e\n9 lives\n" + counted(b"<5>f") + b"\n<6>g"
    assert run([stream]) == ([b"<1>a", b"<2>b\nc", b"<3>d", b"<4>e", b"9 lives", b"<5>f", b"<6>g"], [])


@pytest.mark.parametrize("count", [b"0012", b"012", b"0", b"00", b"+12", b" 12"])
@pytest.mark.parametrize("before", [[], [b"<1>a"]])
def test_a_number_that_rfc_6587_does_not_allow_is_no_count(count: bytes, before: list[bytes]) -> None:
    line = count + b" <34>hello wo"
    assert run([b"".join(map(counted, before)) + line + b"\n" + counted(b"<2>b")]) == ([*before, line, b"<2>b"], [])


def test_a_nul_in_other_text_is_a_character() -> None:
    assert run([b"\xff\0 x\n<1>a\0no\0pe\0<2>b\n"]) == ([b"\xff\0 x", b"<1>a", b"no\0pe", b"<2>b"], [])


@pytest.mark.parametrize("unit", [b"\n1", b"\n\0", b"<1>a\n1\n", b"<1>a\0<1>b\n", b"1\0<1", b"<1>\nb\0"])
def test_lines_are_found_in_bulk_whatever_they_end_with(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at a time, they would take seconds of the thread that reads for all senders."""
    looks = 0
    look = syslog_framing._Stops.from_place

    def counting(self: syslog_framing._Stops, place: int, **options: bool) -> npt.NDArray[np.int64]:
        nonlocal looks
        looks += 1
        return look(self, place, **options)

    monkeypatch.setattr(syslog_framing._Stops, "from_place", counting)
    splitter = SyslogFraming(timezone="UTC", max_record_bytes=2**16).open()
    stream = unit * (2**16 // len(unit))
    taken = splitter.take(bytearray(stream), len(stream))
    assert taken.piece is not None
    assert looks < 10


def test_a_nul_in_a_text_behind_a_message_ends_nothing() -> None:
    assert run([b"<1>a\n\nno\n\xff\0 \xfe\n<1>b\n"]) == ([b"<1>a", b"", b"no", b"\xff\0 \xfe", b"<1>b"], [])


def test_each_message_may_end_with_a_nul_or_a_newline() -> None:
    stream = b"<1>a\0<2>b\n<3>c\0\n<4>d\0" + counted(b"<5>e\0f") + b"<6>g\0<7>h"
    assert run([stream]) == ([b"<1>a", b"<2>b", b"<3>c", b"<4>d", b"<5>e\0f", b"<6>g", b"<7>h"], [])


@given(
    st.lists(st.text("ab<>1 \n", max_size=12).map(lambda text: b"<1>" + text.encode()), min_size=1, max_size=6),
    st.lists(st.integers(0, 90), max_size=6),
)
@pytest.mark.search
@settings(max_examples=examples(300), deadline=None)
def test_a_message_with_newlines_is_one_where_its_sender_ends_with_nul(messages: list[bytes], cuts: list[int]) -> None:
    """Check it for a sender that has ended one message so: however the network cuts what follows."""
    messages = [re.sub(rb"\n(?=<[0-9]|[1-9][0-9]{0,8} <)|\n+$", b" ", message) for message in messages]
    stream = b"".join(message + b"\0" for message in messages)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[begin:end] for begin, end in pairwise(places) if begin < end]
    assert run([b"<1>first\nline\0", *pieces], limit=200) == ([b"<1>first\nline", *messages], [])


def test_too_large_and_truncated_messages_become_dead_letters_and_the_rest_is_kept() -> None:
    large = b"<1>" + b"x" * 40
    records, letters = run([b"<1>a\n" + large + b"\n<1>b\n" + counted(large) + counted(b"<1>c") + b"9 <1>d"])
    assert records == [b"<1>a", b"<1>b", b"<1>c"]
    assert letters == [DeadLetter(TOO_LARGE, large), DeadLetter(TOO_LARGE, large), DeadLetter(TRUNCATED, b"9 <1>d")]


@pytest.mark.parametrize("first", [b"<1>first\0", b""])
@pytest.mark.parametrize("text", [b"<1>", b"text "])
@pytest.mark.parametrize(
    "behind", [b"\n<13>next", b"\n" + counted(b"<13>next") + b"\n", b"\0<13>next\0", b"\n1234", b"\n"]
)
def test_the_letter_of_a_message_too_large_is_its_own_bytes_at_every_cut(
    first: bytes, text: bytes, behind: bytes
) -> None:
    large = text + b"a" * 3 * LIMIT
    # What no message follows may belong to the one before.
    sizes = {len(large), *(len(large + behind[:size]) for size in (1, len(behind)) if b"<" not in behind)}
    stream = first + large + behind
    for place in range(1, len(stream)):
        letter, *others = letters_of([stream[:place], stream[place:]])
        assert not others, place
        assert letter.reason is TOO_LARGE, place
        assert (large + behind).startswith(letter.data), place
        assert letter.left_out == 0, place
        assert len(letter.data) in sizes, place


@pytest.mark.parametrize("length", [LIMIT + 3, 3 * LIMIT, 2**16 + 50])
@pytest.mark.parametrize("piece", [1, 7, 2**20])
@pytest.mark.parametrize("is_counted", [False, True])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_letter_has_its_first_64_kib_whatever_the_limit_and_the_reads(
    length: int, piece: int, is_counted: bool, is_cut: bool
) -> None:
    if piece < 7 and length > 1000:
        return
    large = b"<1>" + b"".join(b"%d," % n for n in range(length))[: length - 3]
    stream = counted(large) if is_counted else large
    # What is missing of a counted message is counted as left out.
    stream = stream[:-1] if is_cut else stream + (b"" if is_counted else b"\n") + b"<1>next\n"
    records, letters = run([stream[at : at + piece] for at in range(0, len(stream), piece)], clean=not is_cut)
    assert records == ([] if is_cut else [b"<1>next"])
    [letter] = letters
    size = length - 1 if is_cut and not is_counted else length
    kept = min(length - is_cut, 2**16)
    assert (letter.reason, letter.data, letter.left_out) == (TOO_LARGE, large[:kept], size - kept)


def test_a_count_that_is_too_large_is_told_before_its_end_comes() -> None:
    splitter = SyslogFraming(timezone="UTC", max_record_bytes=1000).open()
    letters = []
    for piece in (b"999999999 <13>one", *[b"<13>more" * 1000] * 20):
        letters += splitter.take(bytearray(piece), len(piece)).before
    [letter] = letters
    assert (len(letter.data), letter.left_out) == (2**16, 999_999_999 - 2**16)
    assert splitter.finish(clean=False).before == []


def test_memory_is_bounded_by_the_limit() -> None:
    splitter = SyslogFraming(timezone="UTC", max_record_bytes=1000).open()
    for begin in (b"<1>", b"100000000 <1>"):
        splitter.take(bytearray(begin), len(begin))
        for _ in range(1000):
            splitter.take(bytearray(b"x" * 500), 500)
            assert len(splitter._held) <= 1500
        splitter.finish(clean=False)


def rows(*messages: bytes, timezone: str = "UTC", now: datetime = NOW) -> list[dict[str, Any]]:
    data = b"\n".join(messages)
    lengths = np.array([len(message) for message in messages], dtype=np.int64)
    ends = np.cumsum(lengths + 1) - 1
    columns = parse(data, ends - lengths, ends, received_at=micros(now), timezone=timezone)
    for column in columns.values():
        column.validate(full=True)
    made: list[dict[str, Any]] = [
        dict(zip(columns, values, strict=True))
        for values in zip(*(column.to_pylist() for column in columns.values()), strict=True)
    ]
    assert [row.pop("raw") for row in made] == list(messages)
    assert {row.pop("received_at") for row in made} == {now}
    return [{name: value for name, value in row.items() if value is not None} for row in made]


def named(priority: int, **values: object) -> dict[str, object]:
    return {"priority": priority, "facility": priority // 8, "severity": priority % 8, **values}


def test_examples_of_rfc_5424() -> None:
    data = '[exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"][examplePriority@32473 class="high"]'
    assert rows(
        b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed",
        b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.",
        b"<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 " + data.encode(),
        b'<0>1 - - - - - [a b="]\\" [x] "] two\nlines',
        b"<191>1 - - - - - -",
    ) == [
        named(
            34,
            version=1,
            timestamp=datetime(2003, 10, 11, 22, 14, 15, 3000, tzinfo=UTC),
            hostname="mymachine.example.com",
            app_name="su",
            msg_id="ID47",
            message="'su root' failed",
        ),
        named(
            165,
            version=1,
            timestamp=datetime(2003, 8, 24, 12, 14, 15, 3, tzinfo=UTC),
            hostname="192.0.2.1",
            app_name="myproc",
            proc_id="8710",
            message="%% It's time to make the do-nuts.",
        ),
        named(
            165,
            version=1,
            timestamp=datetime(2003, 10, 11, 22, 14, 15, 3000, tzinfo=UTC),
            hostname="mymachine.example.com",
            app_name="evntslog",
            msg_id="ID47",
            structured_data=data,
        ),
        named(0, version=1, structured_data='[a b="]\\" [x] "]', message="two\nlines"),
        named(191, version=1),
    ]


def test_examples_of_rfc_3164_and_common_deviations() -> None:
    def at(*place: int) -> datetime:
        return datetime(*place, tzinfo=UTC)  # type: ignore[arg-type, misc]

    assert rows(
        b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
        b"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!",
        b"<13>Mar 10 11:59:59 host cron[77]: (root) CMD x: y",
        b"<13>Mar 10 11:59:59 cron[77]: no host",
        b"<13>2026-03-10T12:59:59.5+01:00 host app: by rsyslog",
        b"<13>tag: nothing else",
        b"<13>only text [1]: here\r\n",
        b"<13>\0",
    ) == [
        named(
            34,
            timestamp=at(2025, 10, 11, 22, 14, 15),
            hostname="mymachine",
            app_name="su",
            message="'su root' failed for lonvick on /dev/pts/8",
        ),
        named(13, timestamp=at(2026, 2, 5, 17, 32, 18), hostname="10.0.0.99", message="Use the BFG!"),
        named(
            13,
            timestamp=at(2026, 3, 10, 11, 59, 59),
            hostname="host",
            app_name="cron",
            proc_id="77",
            message="(root) CMD x: y",
        ),
        named(13, timestamp=at(2026, 3, 10, 11, 59, 59), app_name="cron", proc_id="77", message="no host"),
        named(
            13,
            timestamp=at(2026, 3, 10, 11, 59, 59).replace(microsecond=500_000),
            hostname="host",
            app_name="app",
            message="by rsyslog",
        ),
        named(13, app_name="tag", message="nothing else"),
        named(13, message="only text [1]: here"),
        named(13, message=""),
    ]


@pytest.mark.parametrize(
    ("now", "text", "wanted"),
    [
        ((2026, 1, 1), b"Dec 31 23:59:59", (2025, 12, 31, 23, 59, 59)),
        ((2025, 12, 31), b"Jan  1 00:00:01", (2026, 1, 1, 0, 0, 1)),
        ((2026, 3, 10), b"Apr  1 00:00:00", (2026, 4, 1, 0, 0, 0)),
        ((2026, 3, 10), b"May  1 00:00:00", (2025, 5, 1, 0, 0, 0)),
        ((2028, 3, 1), b"Feb 29 10:00:00", (2028, 2, 29, 10, 0, 0)),
    ],
)
def test_the_year_of_a_time_without_one(now: tuple[int, int, int], text: bytes, wanted: tuple[int, ...]) -> None:
    [row] = rows(b"<13>" + text + b" h t: m", now=datetime(*now, 12, tzinfo=UTC))
    assert row["timestamp"] == datetime(*wanted, tzinfo=UTC)  # type: ignore[arg-type, misc]


def test_the_zone_of_a_time_without_one() -> None:
    [summer, twice] = rows(
        b"<13>Jul  1 12:00:00 h t: m",
        b"<13>Oct 25 02:30:00 h t: m",
        timezone="Europe/Berlin",
        now=datetime(2026, 10, 26, tzinfo=UTC),
    )
    assert summer["timestamp"] == datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert twice["timestamp"] == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize("form", ["<{}>1 - h a p m - text", "<{}>Mar  1 10:00:00 h t: m", "<{}>text"])
@pytest.mark.parametrize("priority", ["34", "034", "008", "00"])
def test_a_priority_with_zeros_before_it_is_that_decimal_number(form: str, priority: str) -> None:
    """Read it though RFC 5424 forbids it: no other number is written so, and ``raw`` has it as it came."""
    [padded], [plain] = rows(form.format(priority).encode()), rows(form.format(int(priority)).encode())
    assert padded == plain
    assert padded["priority"] == int(priority)


def test_an_unparsable_message_is_a_row_with_the_reason() -> None:
    assert rows(
        b"",
        b"no priority",
        b"<192>x",
        b"<1x>y",
        b"<13>1 2026-01-01T00:00:00Z host app",
        b'<13>1 - h a p m [x y="z] m',
        b"<13>1 2026-02-30T00:00:00Z h a p m - text",
        b"<13>1 yesterday h a p m - text",
        b"<13>Feb 30 10:00:00 h t: m",
        b"<13>Mar  1 10:00:00 h t: \xff\xfe m",
        "<13>Mar  1 10:00:00 h t: ü".encode(),
    ) == [
        {"message": "", "parse_error": "no priority"},
        {"message": "no priority", "parse_error": "no priority"},
        {"message": "<192>x", "parse_error": "no priority"},
        {"message": "<1x>y", "parse_error": "no priority"},
        named(13, message="1 2026-01-01T00:00:00Z host app", parse_error="no RFC 5424 header"),
        named(13, message='1 - h a p m [x y="z] m', parse_error="no RFC 5424 header"),
        *(
            named(
                13,
                version=1,
                hostname="h",
                app_name="a",
                proc_id="p",
                msg_id="m",
                message="text",
                parse_error="no such time",
            )
            for _ in range(2)
        ),
        named(13, hostname="h", app_name="t", message="m", parse_error="no such time"),
        named(
            13,
            timestamp=datetime(2026, 3, 1, 10, tzinfo=UTC),
            hostname="h",
            app_name="t",
            message="\ufffd\ufffd m",
            parse_error="not UTF-8",
        ),
        named(13, timestamp=datetime(2026, 3, 1, 10, tzinfo=UTC), hostname="h", app_name="t", message="ü"),
    ]


def test_a_count_that_ends_inside_a_character_makes_two_messages_of_valid_text() -> None:
    framing = SyslogFraming(timezone="UTC", max_record_bytes=LIMIT, now=lambda: micros(NOW))
    stream = b"8 <14>caf\xc3\xa9<14>x\n"
    piece = framing.open().take(bytearray(stream), len(stream)).piece
    assert piece is not None
    records = framing.cut([piece]).records
    assert records is not None
    records.validate(full=True)
    assert records.column("raw").to_pylist() == [b"<14>caf\xc3", b"\xa9<14>x"]
    assert records.column("message").to_pylist() == ["caf\ufffd", "\ufffd<14>x"]
    assert records.column("parse_error").to_pylist() == ["not UTF-8", "not UTF-8"]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.text(alphabet='<>1 -[]:"\\=aJn0T', max_size=60).map(lambda text: ("<13>" + text).encode()),
            st.text(alphabet='<>1 -[]:"\\=aJn0T\n', max_size=60).map(lambda text: ("<13>1 - " + text).encode()),
            st.text(alphabet="0123456789: -", max_size=20).map(lambda text: ("<13>Jan " + text).encode()),
        ),
        min_size=1,
        max_size=5,
    )
)
@pytest.mark.search
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_are_parsed_and_messages_do_not_affect_each_other(messages: list[bytes]) -> None:
    together = rows(*messages)
    assert together == [row for message in messages for row in rows(message)]
    for message, row in zip(messages, together, strict=True):
        assert row.get("message", "") in message.decode("utf-8", "replace")


def test_each_datagram_is_a_message_and_a_too_large_one_becomes_a_dead_letter() -> None:
    framing = SyslogFraming(timezone="UTC", max_record_bytes=LIMIT)
    cut = framing.cut_datagrams([b"<13>a\n", b"<13>b\0", b"x" * 21, b"<13>c\nd"], ["::ffff:1.2.3.4", "::1", "h", "h"])
    assert cut.records is not None
    assert cut.records.select(["sender", "raw"]).to_pylist() == [
        {"sender": "1.2.3.4", "raw": b"<13>a\n"},
        {"sender": "::1", "raw": b"<13>b\0"},
        {"sender": "h", "raw": b"<13>c\nd"},
    ]
    assert cut.dead_letters == [DeadLetter(TOO_LARGE, b"x" * 21, peer="h")]
