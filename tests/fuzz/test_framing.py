"""Fuzz the framings of sockets: lengths before records, and delimiters after them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.receivers.sockets.length_prefixed import LengthPrefixedFraming
from tests.fuzz.splits import splits
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.framing import Framing

_MOST_BYTES, _PART_BYTES = 40, 7
_LENGTH_PREFIXED = LengthPrefixedFraming(max_record_bytes=_MOST_BYTES, letter_bytes=_PART_BYTES)
_LINES = b"one\ntwo\r\n\ncaf\xc3\xa9\n" + b"x" * 60 + b"\nlast"
# By the first byte of the input.
_DELIMITERS: Sequence[tuple[bytes, str, bool]] = (
    (b"\n", "utf-8", False),
    (b"\n", "iso8859-1", True),
    (b"\n", "shift_jis", False),
    (b"\r\n", "utf-8", False),
    (b"aba", "utf-8", False),
    (b"\xe2\x80\xa8", "utf-8", False),
    (b"\0", "cp1252", True),
    (b"\n", "gb18030", False),
    (b"||", "ascii", True),
)


def _run(framing: Framing, pieces: Sequence[bytes], *, clean: bool) -> tuple[list[object], list[DeadLetter], int]:
    splitter = framing.open()
    records: list[object] = []
    letters: list[DeadLetter] = []
    refusals = 0
    takens = []
    for piece in pieces:
        takens.append(splitter.take(bytearray(piece + b"\n\0\0\0\1?\n"), len(piece)))
        if takens[-1].refusal is not None:
            refusals += 1
            break
    takens.append(splitter.finish(clean=clean))
    for taken in takens:
        letters += taken.before
        if taken.piece is not None:
            cut = framing.cut([taken.piece])
            letters += cut.dead_letters
            if cut.records is not None:
                cut.records.validate(full=True)
                records += cut.records.to_pylist()
        letters += taken.after
    assert all(letter.data for letter in letters)
    return records, letters, refusals


def _framed(*records: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(record)) + record for record in records)


@fuzzed(
    "length_prefixed",
    valid=[_framed(b"a", b"", b"caf\xc3\xa9", b"x" * _MOST_BYTES), _framed(*[b"r"] * 30)],
    words=[_framed(b"ab"), struct.pack(">i", _MOST_BYTES + 1), struct.pack(">i", -1)],
    attacks=[bytes(40_000), b"GET / HTTP/1.1\r\n"],
)
def test_lengths_give_the_same_records_however_a_stream_is_cut(stream: bytes) -> None:
    expected = None
    for pieces in splits(stream):
        records, letters, refusals = _run(_LENGTH_PREFIXED, pieces, clean=True)
        found = records, refusals, {letter.reason for letter in letters}
        expected = expected or found
        assert found == expected
        assert len(records) <= len(stream) // 4
        assert all(isinstance(record, bytes) and len(record) <= _MOST_BYTES for record in records)
        assert stream.startswith(_framed(*(record for record in records if isinstance(record, bytes))))


@fuzzed(
    "delimited",
    valid=[bytes([48 + n]) + _LINES.replace(b"\n", delimiter) for n, (delimiter, _, _) in enumerate(_DELIMITERS)],
    words=[delimiter for delimiter, _, _ in _DELIMITERS]
    + [b"abab", b"\r", b"\x81", b"\x81\x40", b"\x84\x31\x95\x33", b"x" * 41],
    attacks=[b"0" + b"\n" * 60_000, b"0" + b"\xff\n" * 500, b"4" + b"ab" * 9000, b"0" + b"\r" * 9000],
)
def test_delimiters_give_the_same_records_however_a_stream_is_cut(data: bytes) -> None:
    selector, stream = data[:1], data[1:]
    delimiter, encoding, one_byte = _DELIMITERS[((selector or b"0")[0] - 48) % len(_DELIMITERS)]
    framing = LineFraming(
        delimiter=delimiter,
        encoding=encoding,
        one_byte=one_byte,
        max_record_bytes=_MOST_BYTES,
        letter_bytes=_PART_BYTES,
    )
    for clean in (True, False):
        expected = None
        for pieces in splits(stream):
            records, letters, refusals = _run(framing, pieces, clean=clean)
            found = records, sorted((letter.reason, letter.data, letter.left_out) for letter in letters)
            expected = expected or found
            assert found == expected
            assert not refusals
            assert len(records) <= len(stream) + 1
            assert all(len(letter.data) <= _PART_BYTES for letter in letters)
            kept = sum(len(record.encode(encoding)) for record in records if isinstance(record, str))
            assert kept + sum(len(letter.data) for letter in letters) <= len(stream)
