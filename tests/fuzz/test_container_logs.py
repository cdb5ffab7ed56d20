"""Fuzz the lines of containers' logs: any bytes are records or dead letters, the same in pieces of any size."""

from __future__ import annotations

import pyarrow as pa

from forebay_contrib.container_logs.joiner import ContainerJoiner
from forebay_contrib.container_logs.lines import BytesFraming
from receiver_runtime.receivers.files.content import OpenedFile
from receiver_runtime.receivers.files.records import Limits, LineReader, Reading
from receiver_runtime.sources.fields.multiline import Multiline
from tests.fuzz.target import fuzzed

_CRI = b"2026-11-30T12:00:00.123456789Z stdout F b one\n2026-11-30T12:00:00+01:00 stderr P two\xc3"
_DOCKER = b'{"log":"b \\u003cone\\u003e\\n","stream":"stdout","attrs":{"a":"b"},"time":"2026-11-30T12:00:00.1Z"}'
_MOST_BYTES, _LONGEST = 64, 100_000


def _read(data: bytes, multiline: Multiline | None, limits: Limits) -> tuple[list[object], list[bytes]]:
    reader = LineReader(
        encoding="utf-8",
        max_record_bytes=_LONGEST,
        joiner=ContainerJoiner(multiline, _MOST_BYTES),
        framing=BytesFraming(max_record_bytes=_LONGEST),
    )
    reading, content = Reading("a"), OpenedFile(pa.BufferReader(data))
    rows: list[object] = []
    letters: list[bytes] = []
    for _ in range(2 * len(data) + 10):
        before = reading.position
        part = reader.read(reading, content, limits, path="a", modified_ms=1, ends=True)
        letters += [letter.data for letter in part.letters]
        if part.batch is not None:
            part.batch.validate(full=True)
            rows += part.batch.to_pylist()
            assert max(len(str(value).encode()) for value in part.batch.column("value").to_pylist()) <= _MOST_BYTES
        if not part.more and reading.position == before:
            assert before == len(data)
            return rows, sorted(letters)
    raise AssertionError("it was not read to its end")


@fuzzed(
    "container_logs",
    valid=[
        b"\n".join([_CRI, b"2026-11-30T12:00:00Z stderr F:tag \xa9", _CRI, _DOCKER, _DOCKER, b""]),
        _DOCKER + b"\n" + _DOCKER.replace(b"\\n", b"").replace(b"stdout", b"stderr") + b"\n" + _DOCKER,
    ],
    words=[
        b" stdout F ",
        b" stderr P ",
        b'"log":',
        b'"\\ud800"',
        b"2262-04-12T00:00:00Z",
        b"\n",
        b"\r",
        b"\0",
        b"[" * 30,
    ],
    attacks=[b"{" * 3000, b"[" * 3000, b'{"log":' * 3000, b"2026-02-30T12:00:00Z stdout F \n" * 500],
)
def test_containers_lines_are_the_same_in_pieces_of_any_size(data: bytes) -> None:
    for multiline in (None, Multiline(start="^b", max_lines=3)):
        expected = _read(data, multiline, Limits(2**20, 2**20))
        assert _read(data, multiline, Limits(3, 1)) == expected
