from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.sockets.length_prefixed import LengthPrefixedFraming

if TYPE_CHECKING:
    from receiver_runtime.receivers.framing import Taken

TRUNCATED = DeadLetterReason.TRUNCATED
INVALID_LENGTH = DeadLetterReason.INVALID_LENGTH

LIMIT = 10
PART = 7


def framed(*records: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(record)) + record for record in records)


def run(pieces: list[bytes], *, limit: int = LIMIT) -> tuple[list[bytes], list[DeadLetter], str | None]:
    framing = LengthPrefixedFraming(max_record_bytes=limit, letter_bytes=PART)
    splitter = framing.open()
    takens: list[Taken] = []
    for piece in pieces:
        # Bytes behind the piece in the buffer are left over from an earlier read.
        takens.append(splitter.take(bytearray(piece + b"\0\0\0\1?"), len(piece)))
        if takens[-1].refusal is not None:
            break
    takens.append(splitter.finish(clean=True))
    records: list[bytes] = []
    letters: list[DeadLetter] = []
    for taken in takens:
        letters.extend(taken.before)
        if taken.piece is not None:
            cut = framing.cut([taken.piece])
            assert cut.records is not None
            cut.records.validate(full=True)
            records.extend(cut.records.to_pylist())
            assert cut.dead_letters == []
        letters.extend(taken.after)
    return records, letters, next((taken.refusal for taken in takens if taken.refusal is not None), None)


def model(stream: bytes, limit: int = LIMIT) -> tuple[list[bytes], DeadLetterReason | None, bytes]:
    """Do the same in plain Python: return the records, why there are no more, and the rest."""
    records: list[bytes] = []
    while len(stream) >= 4:
        length = struct.unpack(">i", stream[:4])[0]
        if length < 0 or length > limit:
            return records, INVALID_LENGTH, stream
        if len(stream) < 4 + length:
            break
        records.append(stream[4 : 4 + length])
        stream = stream[4 + length :]
    return records, TRUNCATED if stream else None, stream


GOOD = st.lists(st.binary(max_size=LIMIT), max_size=12).map(lambda records: framed(*records))
STREAMS = st.one_of(
    GOOD,
    st.tuples(GOOD, st.binary(max_size=20)).map(b"".join),
    st.tuples(GOOD, st.sampled_from([b"\0\0\0\x0b", b"\xff\xff\xff\xff", b"GET / HTTP/1.1", b"\0\0\0\x0ahalf"])).map(
        b"".join
    ),
)
CUTS = st.lists(st.integers(0, 200), max_size=30)


# No deadline: the first call into Arrow takes longer than the rest.
@settings(deadline=None)
@given(stream=STREAMS, cuts=CUTS)
@example(stream=framed(b"", b"a", b""), cuts=[1, 2, 3, 5, 9])
@example(stream=framed(b"x" * LIMIT), cuts=[])
def test_x02_a_stream_cut_in_any_way_gives_the_same(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(stream), *(place for place in cuts if place < len(stream))})
    records, letters, refusal = run([stream[start:end] for start, end in pairwise(places)])
    expected, reason, rest = model(stream)
    assert records == expected
    assert {letter.reason for letter in letters} == ({reason} if reason is not None else set())
    assert (refusal is not None) == (reason is INVALID_LENGTH)
    if reason is TRUNCATED:
        assert [(letter.data, letter.left_out) for letter in letters] == [(rest[:PART], max(0, len(rest) - PART))]
    elif reason is INVALID_LENGTH:
        # It is what had been read from the bad length on, and at least the length itself.
        [letter] = letters
        assert rest.startswith(letter.data)
        assert 4 <= len(letter.data) <= PART


@settings(deadline=None)
@given(garbage=st.binary(max_size=5000), cuts=st.lists(st.integers(0, 5000), max_size=30), limit=st.integers(1, 2**28))
def test_x02_garbage_is_records_or_goes_aside_and_nothing_fails(garbage: bytes, cuts: list[int], limit: int) -> None:
    places = sorted({0, len(garbage), *(place for place in cuts if place < len(garbage))})
    records, _, _ = run([garbage[start:end] for start, end in pairwise(places)], limit=limit)
    assert records == model(garbage, limit)[0]


@settings(deadline=None)
@given(streams=st.lists(GOOD, min_size=1, max_size=8))
def test_x02_pieces_of_several_connections_are_cut_together(streams: list[bytes]) -> None:
    framing = LengthPrefixedFraming(max_record_bytes=LIMIT)
    pieces = [framing.open().take(bytearray(stream), len(stream)).piece for stream in streams]
    cut = framing.cut([piece for piece in pieces if piece is not None])
    expected = [record for stream in streams for record in model(stream)[0]]
    assert ([] if cut.records is None else cut.records.to_pylist()) == expected


@pytest.mark.parametrize(
    ("length", "message"), [(b"\x80\0\0\0", "-2147483648, not 0 to 10"), (b"\0\0\0\x0b", "11, not 0 to 10")]
)
def test_x02_an_invalid_length_is_named(length: bytes, message: str) -> None:
    records, letters, refusal = run([framed(b"a") + length + b"xy" * 50 + framed(b"never")])
    assert records == [b"a"]
    rest = length + b"xy" * 50 + framed(b"never")
    assert letters == [DeadLetter(INVALID_LENGTH, rest[:PART], left_out=len(rest) - PART)]
    assert refusal is not None
    assert message in refusal


def test_x02_a_large_announced_length_takes_no_memory() -> None:
    splitter = LengthPrefixedFraming(max_record_bytes=2**28).open()
    splitter.take(bytearray(struct.pack(">i", 2**28) + b"abc"), 7)
    assert len(splitter._held) == 7
