"""Check that the lines of containers' logs make the same records however a file is cut and read, each once."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_contrib.container_logs.declaration import ContainerLogs
from forebay_contrib.container_logs.joiner import ContainerJoiner
from forebay_contrib.container_logs.lines import BytesFraming
from receiver_runtime.receivers.files.content import OpenedFile
from receiver_runtime.receivers.files.records import Limits, LineReader, Reading
from receiver_runtime.receivers.framing import LETTER_BYTES
from receiver_runtime.sources.fields.multiline import Multiline
from tests.support.searches import examples

MOST = 24
LINES = 3
LONGEST = 4000
PATTERNS = (None, Multiline(start="^b", max_lines=LINES), Multiline(continuation=r"^[\t ]", max_lines=LINES))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Line:
    """A line of a file: a piece of text of a stream, or (``stream`` is "") no line of a container's log."""

    stream: str
    text: bytes
    goes_on: bool = False
    is_docker: bool = False

    def raw(self, number: int) -> bytes:
        time = f"2026-11-30T12:00:00.{number:09d}".rstrip("0").rstrip(".") + "Z"
        if not self.stream:
            return self.text
        if self.is_docker:
            log = self.text.decode() + "\n" * (not self.goes_on)
            return json.dumps({"log": log, "stream": self.stream, "attrs": {"a": "b"}, "time": time}).encode()
        return f"{time} {self.stream} {'P' if self.goes_on else 'F:tag'} ".encode() + self.text


@dataclass
class Stream:
    """What the model holds of a stream: the pieces of its text that goes on, and the texts of its open record."""

    pieces: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    texts: list[tuple[int, str]] = field(default_factory=list)


class Model:
    """Join lines one by one."""

    def __init__(self, multiline: Multiline | None) -> None:
        self._multiline = multiline
        self._streams = {"stdout": Stream(), "stderr": Stream()}
        self.records: list[tuple[int, str, str, int]] = []
        self.letters: list[tuple[int, bytes]] = []
        self._numbers: dict[int, int] = {}

    def end(self) -> None:
        for name in self._streams:
            self._end_text(name)
            self._end_record(name)

    def add(self, at: int, number: int, line: Line, raw: bytes) -> None:
        self._numbers[at] = number
        if not line.stream:
            self.letters.append((at, raw))
            self.end()
            return
        stream = self._streams[line.stream]
        stream.pieces.append((at, line.text, raw))
        while len(pieces := stream.pieces) > 1 and len(b"".join(piece for _, piece, _ in pieces)) > MOST:
            # Before the last piece that begins with a whole character.
            whole = [n for n, (_, piece, _) in enumerate(pieces) if n and piece and not 0x80 <= piece[0] <= 0xBF]
            cut = whole[-1] if whole else len(pieces) - 1
            stream.pieces = pieces[:cut]
            self._end_text(line.stream)
            stream.pieces = pieces[cut:]
        if not line.goes_on:
            self._end_text(line.stream)

    def _end_text(self, name: str) -> None:
        stream = self._streams[name]
        if not stream.pieces:
            return
        at, data = stream.pieces[0][0], b"".join(piece for _, piece, _ in stream.pieces)
        raw = b"\n".join(raw for _, _, raw in stream.pieces)
        stream.pieces.clear()
        try:
            text = data.decode()
            is_bad = len(data) > MOST
        except UnicodeDecodeError:
            is_bad = True
        if is_bad:
            self.letters.append((at, raw))
            self._end_record(name)
            return
        multiline = self._multiline
        is_first = multiline is None or (re.search(multiline.pattern, text) is not None) == (
            multiline.start is not None
        )
        joined = "\n".join([*(held for _, held in stream.texts), text])
        if is_first or len(stream.texts) == LINES or len(joined.encode()) > MOST:
            self._end_record(name)
        stream.texts.append((at, text))

    def _end_record(self, name: str) -> None:
        texts = self._streams[name].texts
        if texts:
            at = texts[0][0]
            self.records.append((at, name, "\n".join(text for _, text in texts), self._numbers[at]))
            texts.clear()


_TEXT = st.one_of(
    st.sampled_from([b"b", b" a", b"", b"bb", b"b" * MOST, b"b" * (MOST + 1), b"\te\xcc\x81", b'c"\\', b" ", b"e\xcc"]),
    st.sampled_from([b"\xc3", b" \xc3", b"\xa9", b"\xa9\xc3", b"\xa9b\xc3", "é".encode() * 5, b"\xa9bbbbb"]),
    st.binary(max_size=4).map(lambda data: re.sub(rb"[\n\r\0]", b"-", data)),
)
_CRI = st.builds(Line, st.sampled_from(["stdout", "stderr"]), _TEXT, st.booleans())
_DOCKER = st.builds(
    Line,
    st.sampled_from(["stdout", "stderr"]),
    _TEXT.map(lambda text: text.decode("utf-8", "ignore").encode()),
    st.booleans(),
    st.just(value=True),
)
_BAD = st.builds(
    Line,
    st.just(""),
    st.sampled_from(
        [
            b"",
            b"2026-11-30T12:00:00Z stdin F b",
            b"2026-11-31T12:00:00Z stdout F b",
            b"2026-11-30T12:00:00Z stdout X b",
            b"1500-01-01T00:00:00Z stdout F b",
            b"{",
            b'{"log":"b"}',
            b'{"log":null,"stream":"stdout","time":"2026-11-30T12:00:00Z"}',
            b'{"log":"b\\n","stream":"stdout","time":"yesterday"}',
            b'{"log":"b\\n","stream":"other","time":"2026-11-30T12:00:00Z"}',
            b"\xff",
        ]
    ),
)
# The second one is longer than what is looked at for a record.
_LARGE = st.sampled_from([Line("", b"y" * (LONGEST + 100)), Line("", b"y" * (2 * LONGEST + 300))])
_LINES = st.lists(st.one_of(_CRI, _CRI, _CRI, _DOCKER, _BAD, _LARGE), max_size=14)


def read(
    data: bytes, multiline: Multiline | None, *, longest: int, nbytes: int, most: int, cuts: list[int]
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return records and dead letters of a file that grows to each size; each time another receiver reads it on."""
    reader = LineReader(
        encoding="utf-8",
        max_record_bytes=longest,
        joiner=ContainerJoiner(multiline, MOST),
        framing=BytesFraming(max_record_bytes=longest),
    )
    rows: list[dict[str, Any]] = []
    letters: list[bytes] = []
    position = 0
    for size in [*sorted(cuts), len(data)]:
        reading = Reading("a", position=position)
        for _ in range(4 * len(data) + 20):
            before = reading.position, reading.large
            part = reader.read(
                reading,
                OpenedFile(pa.BufferReader(data[:size])),
                Limits(nbytes, most),
                path="a",
                modified_ms=1,
                ends=size >= len(data),
            )
            letters += [letter.data for letter in part.letters]
            if part.batch is not None:
                part.batch.validate(full=True)
                assert part.batch.schema.names == [name for name, _ in ContainerLogs.columns]
                rows += part.batch.to_pylist()
            if not part.more and (reading.position, reading.large) == before:
                break
            position = reading.position
        else:
            raise AssertionError("it does not come to an end")
    return rows, letters


@settings(max_examples=examples(150))
@given(
    lines=_LINES,
    ending=st.sampled_from([b"\n", b""]),
    multiline=st.sampled_from(PATTERNS),
    nbytes=st.sampled_from([1, 200, 5000, 50_000]),
    most=st.sampled_from([1, 2, 1000]),
    cuts=st.lists(st.integers(0, 600) | st.integers(0, 20_000), max_size=4),
)
@example(
    [Line("stdout", b"b1", goes_on=True), Line("stderr", b"b"), Line("stdout", b"b2"), Line("stderr", b" a")],
    b"\n",
    PATTERNS[1],
    5000,
    1000,
    [40, 70, 110],
)
@example(
    [Line("stdout", b"b1", goes_on=True), Line("stderr", b"b"), Line("stderr", b"b"), Line("stdout", b"b2")],
    b"\n",
    PATTERNS[0],
    5000,
    1000,
    [110, 150],
)
@example(
    [
        *(Line("stdout", piece, goes_on=True) for piece in (b"\xc3\xa9" * 5, b"\xc3\xa9" * 5 + b"\xc3", b"\xa9bbbbb")),
        Line("stdout", b"b"),
    ],
    b"\n",
    PATTERNS[0],
    5000,
    1000,
    [],
)
@example(
    [Line("stdout", b"boom"), Line("stdout", b" at \xc3", goes_on=True), Line("stdout", b"\xa9"), Line("stdout", b"b")],
    b"\n",
    PATTERNS[2],
    5000,
    1000,
    [90],
)
@example([Line("stdout", b"b"), Line("", b"y" * 9000), Line("stdout", b"b")], b"\n", PATTERNS[0], 50_000, 1000, [])
def test_records_are_the_same_however_a_file_grows_and_is_read(
    lines: list[Line], ending: bytes, multiline: Multiline | None, nbytes: int, most: int, cuts: list[int]
) -> None:
    raws = [line.raw(number) for number, line in enumerate(lines)]
    if raws and not raws[-1]:
        ending = b"\n"
    data = b"\n".join(raws) + ending * bool(raws)
    model = Model(multiline)
    at = 0
    for number, (line, raw) in enumerate(zip(lines, raws, strict=True)):
        model.add(at, number, line, raw)
        at += len(raw) + 1
    model.end()
    rows, letters = read(data, multiline, longest=LONGEST, nbytes=nbytes, most=most, cuts=cuts)
    assert [(row["offset"], row["stream"], row["value"], row["time_unix_nano"]) for row in rows] == [
        (at, stream, text, _nanoseconds(number)) for at, stream, text, number in sorted(model.records)
    ]
    assert sorted(letters) == sorted(raw[:LETTER_BYTES] for _, raw in model.letters)
    assert [row["time"] for row in rows] == [
        EPOCH + timedelta(microseconds=row["time_unix_nano"] // 1000) for row in rows
    ]


def _nanoseconds(number: int) -> int:
    return int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()) * 10**9 + number


@settings(max_examples=examples(60))
@given(
    lines=st.lists(_CRI, max_size=30),
    multiline=st.sampled_from(PATTERNS),
    nbytes=st.sampled_from([1, 200]),
    cuts=st.lists(st.integers(0, 1200), max_size=4),
)
def test_mixed_lines_that_find_no_end_are_cut_and_none_is_lost_or_doubled(
    lines: list[Line], multiline: Multiline | None, nbytes: int, cuts: list[int]
) -> None:
    lines = [Line(line.stream, re.sub(rb"[^ab ]", b"", line.text)[:MOST], line.goes_on) for line in lines]
    data = b"".join(line.raw(number) + b"\n" for number, line in enumerate(lines))
    rows, letters = read(data, multiline, longest=80, nbytes=nbytes, most=1000, cuts=cuts)
    assert not letters
    for stream in ("stdout", "stderr"):
        found = "".join(row["value"] for row in rows if row["stream"] == stream).replace("\n", "")
        assert found == b"".join(line.text for line in lines if line.stream == stream).decode()


@pytest.mark.parametrize(
    ("line", "text", "time"),
    [
        ("2021-02-19T16:27:20.1+01:00 stderr F  x ", " x ", 1613748440_100000000),
        ("2016-10-06T00:17:09.669794202Z stdout P:later:tags a b", "a b", 1475713029_669794202),
        ("2016-10-06T00:17:09Z stdout F", "", 1475713029_000000000),
        (
            '{"log":"\\u003ca\\u003e \\"b\\"\\r\\n","stream":"stdout","time":"2016-10-06T00:17:09Z"}',
            '<a> "b"',
            1475713029_000000000,
        ),
    ],
)
def test_a_line_is_read(line: str, text: str, time: int) -> None:
    [row], letters = read(line.encode() + b"\n", None, longest=4000, nbytes=5000, most=10, cuts=[])
    assert (row["value"], row["time_unix_nano"], letters) == (text, time, [])
