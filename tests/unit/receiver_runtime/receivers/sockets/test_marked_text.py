"""Check that a stream is read in the encoding that its byte-order mark names, however it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.receivers.sockets.marked_text import MarkedTextFraming

if TYPE_CHECKING:
    from receiver_runtime.receivers.framing import Taken

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-be", "utf-32-be"]


def run(
    framing: LineFraming, data: bytes, size: int, *, clean: bool = True
) -> tuple[list[str], list[DeadLetterReason]]:
    splitter = framing.open()
    takens: list[Taken] = []
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        takens.append(splitter.take(bytearray(piece + b"left over"), len(piece)))
    takens.append(splitter.finish(clean=clean))
    cut = framing.cut([taken.piece for taken in takens if taken.piece is not None])
    letters = [*cut.dead_letters, *(letter for taken in takens for letter in (*taken.before, *taken.after))]
    return ([] if cut.records is None else cut.records.to_pylist()), [letter.reason for letter in letters]


def encoded(text: str, encoding: str) -> bytes:
    # Those that name their byte order write no mark.
    return ("\ufeff" + text if encoding.endswith("be") else text).encode(encoding)


@given(st.text(), st.sampled_from(ENCODINGS), st.integers(1, 9), st.booleans())
def test_lines_are_those_of_the_text_in_any_encoding_and_pieces(
    text: str, encoding: str, size: int, clean: bool
) -> None:
    # A NUL behind the mark of UTF-16 makes it that of UTF-32, and a mark alone is no text.
    text = text.lstrip("\ufeff\0") or "a"
    expected = run(LineFraming(), text.encode(), 1000, clean=clean)
    assert run(MarkedTextFraming(), encoded(text, encoding), size, clean=clean) == expected


@pytest.mark.parametrize(
    ("encoding", "bad"), [("utf-16-be", b"\xd8\0"), ("utf-16-be", b"\xdc\0"), ("utf-32-be", b"\0\x11\0\0")]
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_line_that_can_not_be_decoded_is_a_dead_letter_alone(encoding: str, bad: bytes, size: int) -> None:
    data = encoded("one\nx", encoding) + bad + "y\ntwo\n".encode(encoding)
    assert run(MarkedTextFraming(), data, size) == (["one", "two"], [DeadLetterReason.INVALID_ENCODING])


@pytest.mark.parametrize("clean", [True, False])
def test_a_stream_that_ends_within_a_character(clean: bool) -> None:
    reason = DeadLetterReason.INVALID_ENCODING if clean else DeadLetterReason.TRUNCATED
    data = encoded("one\ntwo", "utf-16-be")
    assert run(MarkedTextFraming(), data[:-1], 5, clean=clean) == (["one"], [reason])
    # What only begins like a mark is text.
    assert run(MarkedTextFraming(), b"\xff", 1, clean=clean) == ([], [reason])


def test_a_splitter_serves_one_stream_after_the_other() -> None:
    framing = MarkedTextFraming()
    splitter = framing.open()
    for encoding in ENCODINGS:
        data = encoded("a\nb\n", encoding)
        taken = splitter.take(bytearray(data), len(data))
        assert taken.piece is not None
        assert framing.cut([taken.piece]).records.to_pylist() == ["a", "b"]  # type: ignore[union-attr]
        splitter.finish(clean=True)
