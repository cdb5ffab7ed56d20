"""Test how chunks become messages: in any order, within a time and a number of bytes, nothing lost silently."""

from __future__ import annotations

import random

import pytest

from forebay_contrib.gelf.chunks import MAGIC, ChunkAssembler
from receiver_runtime.block_store.frames.frame import DeadLetterReason

TRUNCATED, UNPARSABLE = DeadLetterReason.TRUNCATED, DeadLetterReason.UNPARSABLE


class Time:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def chunks(clock: Time) -> ChunkAssembler:
    return ChunkAssembler(timeout=5.0, max_bytes=100_000, clock=clock)


def chunk(number: int, count: int, data: bytes = b"x", message: bytes = b"12345678") -> bytes:
    return MAGIC + message + bytes((number, count)) + data


def test_chunks_in_any_order_of_many_senders_with_one_id(chunks: ChunkAssembler) -> None:
    sent = [(sender, chunk(n, 128, b"%s %d;" % (sender.encode(), n))) for sender in ("a", "b") for n in range(128)]
    random.Random(1).shuffle(sent)
    # Both senders would hold more than their part: the bound is of bytes, not of chunks.
    found = [whole for sender, one in sent if (whole := chunks.take(one, sender)) is not None]
    assert sorted(found) == [b"".join(b"%s %d;" % (s, n) for n in range(128)) for s in (b"a", b"b")]
    assert (chunks.nbytes, chunks.letters()) == (0, [])


def test_the_time_begins_with_the_first_chunk(chunks: ChunkAssembler, clock: Time) -> None:
    assert chunks.take(chunk(1, 3, b"b"), "h") is None
    clock.now += 4.9
    assert chunks.take(chunk(0, 3, b"a"), "h") is None
    assert chunks.take(chunk(0, 2, message=b"another.", data=b"c"), "h") is None
    assert chunks.overdue().dead_letters == []
    clock.now += 0.2
    [letter] = chunks.overdue().dead_letters
    assert (letter.reason, letter.data) == (TRUNCATED, chunk(0, 3, b"a") + chunk(1, 3, b"b"))
    assert letter.why == "2 of 3 chunks came within 5 s"
    # Until it is given up, a chunk that was read late completes its message.
    clock.now += 60
    assert chunks.take(chunk(1, 2, message=b"another.", data=b"d"), "h") == b"cd"
    assert chunks.nbytes == 0


def test_at_the_end_all_is_put_aside(chunks: ChunkAssembler) -> None:
    for n in range(3):
        chunks.take(chunk(0, 2, message=b"message%d" % n), "h")
    assert [letter.why for letter in chunks.end().dead_letters] == [
        "1 of 2 chunks came before the receiver stopped"
    ] * 3
    assert chunks.nbytes == 0


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (MAGIC, "a chunk of 2 bytes, its head has 12"),
        (MAGIC + b"12345678\0", "a chunk of 11 bytes"),
        (chunk(2, 2), "chunk 2 of 2"),
        (chunk(0, 0), "chunk 0 of 0"),
        (chunk(0, 129), "chunk 0 of 129"),
        (chunk(1, 3), "a chunk of 3, others of this message said 2"),
        (chunk(0, 2, b"other"), "chunk 0 came twice, with other bytes"),
    ],
)
def test_an_odd_chunk_is_put_aside_and_its_message_goes_on(chunks: ChunkAssembler, odd: bytes, why: str) -> None:
    assert chunks.take(chunk(0, 2, b"a"), "::1") is None
    assert chunks.take(odd, "::1") is None
    # The network may double a datagram.
    assert chunks.take(chunk(0, 2, b"a"), "::1") is None
    [letter] = chunks.letters()
    assert (letter.reason, letter.data, letter.peer) == (UNPARSABLE, odd, "::")
    assert why in letter.why
    assert chunks.take(chunk(1, 2, b"b"), "::1") == b"ab"


def test_memory_is_bounded_and_one_peer_does_not_push_out_others(chunks: ChunkAssembler) -> None:
    chunks.take(chunk(0, 2, b"mine"), "10.0.0.1")
    for n in range(1000):
        chunks.take(chunk(0, 2, b"y" * 1000, message=b"%08d" % n), "10.0.0.2")
        assert chunks.nbytes <= 100_000
    letters = chunks.letters()
    assert len(letters) > 900
    # The oldest ones were given up, and each is there.
    assert [letter.data[2:10] for letter in letters] == [b"%08d" % n for n in range(len(letters))]
    assert {letter.peer for letter in letters} == {"10.0.0.2"}
    assert chunks.take(chunk(1, 2, b"!"), "10.0.0.1") == b"mine!"
    # Many peers together push out the oldest.
    for n in range(1000):
        chunks.take(chunk(0, 2, b"z" * 1000), f"10.1.{n // 250}.{n % 250}")
        assert chunks.nbytes <= 100_000
    assert len(chunks.letters()) + len(chunks.end().dead_letters) == 1000 + 1000 - len(letters)
    assert chunks.nbytes == 0


def test_a_large_chunk_is_a_part_of_its_letter(clock: Time) -> None:
    chunks = ChunkAssembler(timeout=5, max_bytes=10**6, clock=clock)
    for n in range(2):
        chunks.take(chunk(n, 3, b"%d" % n * 60_000), "h")
    [letter] = chunks.end().dead_letters
    assert (len(letter.data), letter.left_out) == (2**16, 2 * 60_012 - 2**16)
