"""Test what messages of the Forward protocol become: rows, dead letters, keys and acknowledgements."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import zstandard

from forebay_contrib.fluent_forward.declaration import FluentForward
from forebay_contrib.fluent_forward.messages import MessageSplitter
from forebay_contrib.fluent_forward.records import Limits, Origin, Parsed, parse
from forebay_contrib.fluent_forward.scanning import NotMessagePackError, TooLongError, ValueScanner
from forebay_contrib.fluent_forward.tests.forward_client import encode, entry, event_time, packed

LIMITS = Limits(message=2**20, record=2**16, rows=2**22)
ORIGIN = Origin("203.0.113.7", 1_700_000_000_000_000)
RECEIVED = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def read(data: bytes, limits: Limits = LIMITS) -> list[Parsed]:
    splitter = MessageSplitter(limits.message)
    splitter.take(data)
    found = []
    while (message := splitter.next_message()) is not None:
        found.append(parse(message, ORIGIN, limits))
    assert splitter.held_bytes == 0
    return found


def one(*values: object, limits: Limits = LIMITS) -> Parsed:
    [parsed] = read(encode(list(values)), limits)
    return parsed


def rows(parsed: Parsed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parsed.rows.batch().to_pylist()
    return found


def texts(parsed: Parsed) -> list[str]:
    return [row["record"] for row in rows(parsed)]


def letters(parsed: Parsed) -> list[tuple[str, str]]:
    return [(letter.reason.label, letter.why) for letter in parsed.rows.letters]


ENTRIES = [entry(1), entry(2)]


@pytest.mark.parametrize(
    "values",
    [
        [ENTRIES],
        [packed(*ENTRIES)],
        # Text, as senders of the old protocol write it.
        [ENTRIES, {"size": 2}],
        [ENTRIES, None],
        [ENTRIES, {"chunk": None}],
        [packed(*ENTRIES), {"compressed": "text"}],
        [gzip.compress(packed(*ENTRIES)), {"compressed": "gzip"}],
        # Fluentd compresses what it appends, and sends it as it is.
        [gzip.compress(packed(ENTRIES[0])) + gzip.compress(packed(ENTRIES[1])), {"compressed": "gzip"}],
        [zstandard.compress(packed(*ENTRIES)), {"compressed": "zstd"}],
    ],
)
def test_each_mode_has_the_same_rows(values: list[Any]) -> None:
    parsed = one("app.log", *values)
    assert rows(parsed) == [
        {
            "tag": "app.log",
            "time": RECEIVED,
            "time_unix_nano": 1_700_000_000_000_000_000 + number,
            "record": f'{{"n":{number}}}',
            "metadata": None,
            "sender": "203.0.113.7",
            "received_at": RECEIVED,
        }
        for number in (1, 2)
    ]
    assert (parsed.ack, parsed.key, letters(parsed)) == (None, None, [])


@pytest.mark.parametrize(
    ("time", "nanoseconds"),
    [
        (5, 5 * 10**9),
        (0, 0),
        (-1, -(10**9)),
        (1.5, 1_500_000_000),
        (event_time(4_000_000_000, 7), 4_000_000_000 * 10**9 + 7),
        (msgspec.msgpack.Ext(-1, b"\0\0\0\7"), 7 * 10**9),
        (msgspec.msgpack.Ext(-1, (9 << 34 | 7).to_bytes(8, "big")), 7 * 10**9 + 9),
        (msgspec.msgpack.Ext(-1, b"\0\0\0\3" + b"\xff" * 8), 3 - 10**9),
        (None, None),
    ],
)
def test_each_form_of_a_time(time: object, nanoseconds: int | None) -> None:
    for parsed in (
        one("t", time, {}),
        one("t", [[time, {}]]),
        one("t", [[[time, {}], {}]]),
        one("t", packed([time, {}])),
    ):
        [row] = rows(parsed)
        assert row["time_unix_nano"] == nanoseconds
        assert (row["time"] is None) == (nanoseconds is None)


@pytest.mark.parametrize(
    ("time", "why"),
    [
        (True, "the time is none"),
        ({}, "the time is none"),
        (float("nan"), "the time is none"),
        # Finite, and infinite in nanoseconds.
        (1e300, "the time is none"),
        # Milliseconds, by mistake.
        (1_700_000_000_000, "the time 1700000000000 is no number of seconds"),
        (msgspec.msgpack.Ext(5, b"x"), "an extension of the type 5"),
        ([1], "the time is an array"),
    ],
)
def test_what_is_no_time_is_a_dead_letter_and_its_neighbour_a_row(time: object, why: str) -> None:
    parsed = one("t", [[time, {"a": 1}], [1, {"b": 2}]], {"chunk": "c"})
    assert texts(parsed) == ['{"b":2}']
    [(reason, said)] = letters(parsed)
    assert reason == "unparsable"
    assert said.startswith(why)
    assert parsed.ack == encode({"ack": "c"})


def test_metadata_of_fluent_bit_is_kept() -> None:
    parsed = one("t", [[[event_time(1, 7), {"source": "x"}], {"m": 1}], [[event_time(1, 7), {}], {"m": 2}]])
    assert {row["time_unix_nano"] for row in rows(parsed)} == {1_000_000_007}
    assert [(row["metadata"], row["record"]) for row in rows(parsed)] == [
        ('{"source":"x"}', '{"m":1}'),
        (None, '{"m":2}'),
    ]


RECORDS: list[tuple[Any, str | None]] = [
    ({}, "{}"),
    ({"a": [1, -2, 2**64 - 1, True, None, 1.5, {"ü": ["x", {}]}]}, None),
    ({"b": b"bytes in UTF-8: \xc3\xbc", "c": '\0\n"\\'}, '{"b":"bytes in UTF-8: ü","c":"\\u0000\\n\\"\\\\"}'),
    ({b"name": 1}, '{"name":1}'),
    ({7: "a number", 1.5: "another"}, '{"7":"a number","1.5":"another"}'),
    ({"large": 1e300, "small": -1e-300}, '{"large":1e300,"small":-1e-300}'),
    ({"at": event_time(5, 7), "on": event_time(5)}, '{"at":5.000000007,"on":5}'),
    ({"at": msgspec.msgpack.Ext(-1, b"\0\0\0\3" + b"\xff" * 8)}, '{"at":-0.999999997}'),
]  # fmt: skip


@pytest.mark.parametrize(("record", "text"), RECORDS)
def test_a_record_is_the_same_in_json(record: Any, text: str | None) -> None:  # noqa: ANN401
    for parsed in (one("t", 1, record), one("t", [[1, record], entry(1)]), one("t", packed([event_time(1), record]))):
        assert letters(parsed) == []
        if text is None:
            assert json.loads(texts(parsed)[0]) == record
        else:
            assert texts(parsed)[0] == text


def test_a_name_that_is_there_twice_stays_there_twice() -> None:
    twice, nested = b"\x82\xa1a\x01\xa1a\x02", b"\x81\xa1x\x91\x82\xa1a\x01\xa1a\xc0"
    for record, text in ((twice, '{"a":1,"a":2}'), (nested, '{"x":[{"a":1,"a":null}]}')):
        [parsed] = read(b"\x93\xa1t\x01" + record)
        assert texts(parsed) == [text]


def test_encodings_that_are_longer_than_needed_are_read() -> None:
    # As Fluent Bit writes maps, whose sizes it learns later; and as JavaScript writes numbers.
    long = b"\xdf\0\0\0\1\xdb\0\0\0\1a\xdd\0\0\0\2\xd3\0\0\0\0\0\0\0\1\xde\0\0"
    [parsed] = read(b"\xdd\0\0\0\3\xd9\x01t\xcf\0\0\0\0\0\0\0\1" + long)
    assert texts(parsed) == ['{"a":[1,{}]}']


@pytest.mark.parametrize(
    ("record", "reason", "why"),
    [
        ([], "unparsable", "the record is no map"),
        (None, "unparsable", "the record is no map"),
        ({"x": b"\xff\xfe"}, "invalid_encoding", "text or bytes that are no UTF-8, at byte 0 of 2"),
        ({"x": float("nan")}, "unparsable", "the number nan"),
        ({"x": [float("-inf")]}, "unparsable", "the number -inf"),
        ({None: 1}, "unparsable", "a map has a name that is no text"),
        ({"x": msgspec.msgpack.Ext(9, b"")}, "unparsable", "an extension of the type 9"),
        ({"x": msgspec.msgpack.Ext(-9, b"")}, "unparsable", "an extension of the type -9"),
        ({"x": "y" * 2**16}, "record_too_large", "65544 bytes, max_record_bytes is 65536"),
        # Shorter than its JSON.
        ({"x": "\0" * 2**14}, "record_too_large", "98312 bytes, max_record_bytes is 65536"),
        ({"x": "\0" * 2**14, "y": b"\0"}, "record_too_large", "more than 65536 bytes as JSON"),
    ],
)
def test_what_json_can_not_hold_is_a_dead_letter_that_can_be_sent_again(record: object, reason: str, why: str) -> None:
    for values in (
        [event_time(1), record],
        [[[1, record]]],
        [[entry(1), [1, record]]],
        [packed([event_time(1), record])],
    ):
        parsed = one("app", *values, {"chunk": "c"})
        [(found, said)] = letters(parsed)
        assert (found, said[: len(why)]) == (reason, why)
        assert parsed.ack == encode({"ack": "c"})
        [again] = read(parsed.rows.letters[0].data)
        assert (letters(again), texts(again)) == (letters(parsed), [])


def test_a_text_that_is_no_utf_8_is_a_dead_letter() -> None:
    [parsed] = read(b"\x93\xa1t\x01\x81\xa1x\xa2\xff\xfe")
    assert letters(parsed)[0][0] == "invalid_encoding"


def test_deep_nesting_is_refused() -> None:
    for depth, is_row in ((100, True), (10_000, False)):
        record = b"\x81\xa1x" + b"\x91" * depth + b"\xc4\x01y"
        [parsed] = read(b"\x93\xa1t\x01" + record)
        assert bool(texts(parsed)) == is_row
        if not is_row:
            assert letters(parsed) == [("unparsable", "arrays and maps are nested more than 200 deep")]
    # The quick way has a limit of its own.
    [parsed] = read(b"\x93\xa1t\x01\x81\xa1x" + b"\x91" * 10_000 + b"\xc0")
    assert letters(parsed) == [("unparsable", "arrays and maps are nested more than 200 deep")]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\x91\xa1t", "it has 1 values"),
        (b"\x95\xa1t\1\x80\x80\x80", "it has 5 values"),
        (b"\x92\xa1t\1", "give a tag, and entries, or a time and a record"),
        (b"\x94\xa1t\x90\x80\x80", "give a tag, and entries, or a time and a record"),
        (b"\x92\x01\x90", "the tag is no text"),
        (b"\x92\xa1\xff\x90", "the tag is no UTF-8"),
        (b"\x93\xa1t\x90\x01", "the option is no map"),
        (b"\x93\xa1t\x90\x81\xa5chunk\x01", "the chunk is no text"),
        (b"\x93\xa1t\xa0\x81\xaacompressed\xa3lz4", "compressed: 'lz4' is not read here"),
        (b"\x93\xa1t\xa1x\x81\xaacompressed\xa4gzip", "the entries are no whole gzip"),
    ],
)
def test_what_is_no_message_is_a_dead_letter_as_a_whole_and_the_stream_goes_on(value: bytes, why: str) -> None:
    first, second = read(value + encode(["t", 1, {}]))
    [letter] = first.rows.letters
    assert letter.data == value
    assert why in letter.why
    assert texts(second) == ["{}"]


def test_a_bad_message_with_a_chunk_is_acknowledged() -> None:
    # Its sender would send the same bytes for ever.
    for bad in (["t", b"x", {"chunk": "c", "compressed": "gzip"}], [5, [], {"chunk": "c"}]):
        assert one(*bad).ack == encode({"ack": "c"})


def test_a_fault_of_the_parser_puts_one_message_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise OverflowError("a fault")

    message = encode(["t", [[1, {}]], {"chunk": "c"}])
    monkeypatch.setattr("forebay_contrib.fluent_forward.records.json_of", fail)
    [parsed] = read(message)
    assert letters(parsed) == [("unparsable", "the receiver failed to parse it: OverflowError('a fault')")]
    assert [letter.data for letter in parsed.rows.letters] == [message]
    assert parsed.ack == encode({"ack": "c"})
    assert isinstance(parsed.fault, OverflowError)


def test_entries_that_break_off_end_there() -> None:
    whole = packed(entry(1), entry(2))
    for cut, why in ((whole[:-1], "it is cut off"), (whole + b"\xc1rest", "0xc1, which begins no value")):
        parsed = one("t", cut, {"chunk": "c"})
        assert texts(parsed)[0] == '{"n":1}'
        assert why in parsed.rows.letters[0].why
        assert cut.endswith(parsed.rows.letters[0].data)


def test_a_chunk_is_known_by_its_id_and_content() -> None:
    compressed = [gzip.compress(packed(*ENTRIES), mtime=time) for time in (1, 2)]
    keys = {one("t", each, {"chunk": "c", "compressed": "gzip"}).key for each in compressed}
    # The same content, compressed at another time.
    assert len(keys) == 1
    keys |= {one(tag, ENTRIES, {"chunk": "c"}).key for tag in ("t", "u")}
    keys |= {one("t", ENTRIES[:1], {"chunk": "c"}).key, one("t", ENTRIES, {"chunk": "d", "size": 2}).key}
    assert len(keys) == 5
    assert one("t", ENTRIES, {"chunk": b"\xff"}).ack == b"\x81\xa3ack\xc4\x01\xff"


def test_too_many_rows_for_their_tag_are_one_dead_letter() -> None:
    data = encode(["t" * 10_000, [entry(number) for number in range(1000)], {"chunk": "c"}])
    [parsed] = read(data)
    assert [(letter.reason.label, letter.data) for letter in parsed.rows.letters] == [("record_too_large", data)]
    assert parsed.ack is not None


@pytest.mark.parametrize(("count", "kept"), [(2**17, 1), (2**16 - 100, 8)])
def test_what_is_read_of_a_message_has_a_bound_and_the_records_behind_are_rows(count: int, kept: int) -> None:
    # Beyond 64 KiB, a record is written value by value, which counts twice.
    large = [1, {"a": [1] * count}]
    content = gzip.compress(packed(*[large] * kept, entry(1), large, entry(2)))
    limits = Limits(2**20, 2**19, 2**22)
    parsed = one("t", content, {"compressed": "gzip"}, limits=limits)
    assert [len(text) < 10 for text in texts(parsed)] == [False] * kept + [True, True]
    assert letters(parsed) == [("record_too_large", "its message has more than 524288 values: send smaller chunks")]
    [letter] = parsed.rows.letters
    # Sent again by itself, it has room.
    [alone] = read(letter.data, limits)
    assert (len(texts(alone)), letters(alone)) == (1, [])


def test_what_grows_without_end_when_decompressed_is_a_dead_letter() -> None:
    parsed = one("t", gzip.compress(bytes(2**24)), {"compressed": "gzip", "chunk": "c"})
    [(reason, why)] = letters(parsed)
    assert (reason, why) == (
        "record_too_large",
        "more than 1048576 bytes when decompressed, which is max_message_bytes",
    )


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\x92\xa1t\xdd\xff\xff\xff\xff",
        b"\x92\xa1t\xc6\xff\xff\xff\xff",
        b"\x91\xdf\xff\xff\xff\xff",
    ],
)
def test_a_length_that_is_too_large_is_refused_at_once(claim: bytes) -> None:
    splitter = MessageSplitter(2**20)
    splitter.take(claim)
    with pytest.raises(TooLongError):
        splitter.next_message()


@pytest.mark.parametrize(
    "value",
    [
        # Entries that are none, and values that cost a hundred times their bytes as objects.
        b"\x92\xa1t\xdd\x00\x00\x80\x00" + b"\xc0" * 2**15,
        b"\x93\xa1t\x01\x81\xa1x\xdd\x00\x01\x20\x00" + b"\x90" * 0x12000,
        b"\x92\xa1t\xc6\x00\x00\x80\x00" + b"\x92\x01\x80\xc0" * 2**13,
        encode(["t", [[1, {}]] * 10_000]),
    ],
)
def test_memory_is_a_small_multiple_of_the_limits(value: bytes) -> None:
    limits = Limits(message=len(value), record=2**20, rows=4 * len(value))
    tracemalloc.start()
    try:
        with suppress(TooLongError):
            read(value, limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * limits.rows


def test_a_stream_is_cut_the_same_however_it_comes() -> None:
    messages = [["t", ENTRIES, {"chunk": "a"}], None, ["t", packed(*ENTRIES)], ["t", event_time(1), {"x": 1.5}]]
    data = b"".join(map(encode, messages))
    whole = [(parsed.ack, rows(parsed)) for parsed in read(data)]
    splitter, found = MessageSplitter(2**20), []
    for number in range(len(data)):
        splitter.take(data[number : number + 1])
        while (message := splitter.next_message()) is not None:
            parsed = parse(message, ORIGIN, LIMITS)
            found.append((parsed.ack, rows(parsed)))
    assert found == whole
    assert len(whole) == 3


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x93\xa1t\x01\x81\xa1a\xc1", "byte 7 is 0xc1"),
        (b"GET / HTTP/1.1\r\n", "no message begins with the byte 0x47"),
        (b'\xc0{"json": 1}', "no message begins with the byte 0x7b"),
        (b"\x80", "no message begins with the byte 0x80"),
    ],
)
def test_what_is_no_message_pack_ends_the_stream(data: bytes, why: str) -> None:
    splitter = MessageSplitter(2**20)
    splitter.take(data)
    with pytest.raises(NotMessagePackError, match=why):
        splitter.next_message()


@pytest.mark.parametrize("value", [{"a": [1, {"b": None}]}, [[]], 2**63, -1, 1e9, "x" * 300, b"y" * 70_000, {}, 1.5])
def test_a_value_ends_where_its_encoding_ends(value: object) -> None:
    data = encode(value)
    scanner = ValueScanner(2**20)
    scanner.begin()
    assert not any(scanner.scan(data[:end]) for end in range(0, len(data), max(1, len(data) // 50)))
    assert scanner.scan(data + b"more")
    assert scanner.at == len(data)


def test_a_dead_letter_says_why_it_was_refused_and_never_fits_a_typed_stream() -> None:
    source = FluentForward(listen="127.0.0.1:0")
    [letter] = one("t", [[1, {"x": msgspec.msgpack.Ext(9, b"")}]]).rows.letters
    raw = b'{"n":1}'
    whys = source.refusals("unparsable", [letter.data, raw, b"\xc1", encode(["t", 1])])
    assert whys[0] == letter.why
    assert all("message of the Forward protocol" in whys[place] for place in (1, 2, 3))
    # The stream's parser refused it.
    assert source.refusals("does_not_fit", [raw]) == {}
