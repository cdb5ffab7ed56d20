from __future__ import annotations

import pytest

from forebay_contrib.zeromq.records import SCHEMA, cut
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.framing import LETTER_BYTES

MESSAGES = [[b"a"], [b"b", b"\xff"], [b"", b"", b"2", b"3"], [b""]]


@pytest.mark.parametrize(
    ("has_topics", "expected"),
    [
        (True, [(None, b"a", []), (b"b", b"\xff", []), (b"", b"", [b"2", b"3"]), (None, b"", [])]),
        (False, [(None, b"a", []), (None, b"b", [b"\xff"]), (None, b"", [b"", b"2", b"3"]), (None, b"", [])]),
    ],
)
def test_frames_become_columns(has_topics: bool, expected: list[tuple[object, ...]]) -> None:
    found = cut(MESSAGES, has_topics=has_topics, max_record_bytes=4)
    assert found.records is not None
    found.records.validate(full=True)
    assert found.records.schema == SCHEMA
    assert [tuple(row.values()) for row in found.records.to_pylist()] == expected
    assert found.dead_letters == []


def test_a_message_that_is_too_large_in_all_goes_aside_with_its_length() -> None:
    large = [b"x" * 2**20, b"yz"]
    found = cut([[b"a"], large, [b"b"]], has_topics=True, max_record_bytes=2**20 + 1)
    assert found.records is not None
    assert found.records.column("body").to_pylist() == [b"a", b"b"]
    [letter] = found.dead_letters
    assert letter.reason is DeadLetterReason.RECORD_TOO_LARGE
    assert letter.data == large[0][:LETTER_BYTES]
    assert len(letter.data) + letter.left_out == 2**20 + 2
    alone = cut([large], has_topics=True, max_record_bytes=2**20 + 1)
    assert alone.records is None
    assert cut([large], has_topics=True, max_record_bytes=2**20 + 2).records is not None


def test_nothing_is_nothing() -> None:
    found = cut([], has_topics=True, max_record_bytes=1)
    assert (found.records, found.dead_letters) == (None, [])
