from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from receiver_runtime.block_handler import DeadLetter
from receiver_runtime.block_store.frame import DeadLetterReason
from receiver_runtime.receivers.lines import Cut, LineCutter

ENCODING = DeadLetterReason.INVALID_ENCODING
TOO_LARGE = DeadLetterReason.RECORD_TOO_LARGE
TRUNCATED = DeadLetterReason.TRUNCATED

LIMIT = 10
PART = 7


def run(
    pieces: list[bytes],
    *,
    clean: bool = True,
    delimiter: str = "\n",
    encoding: str = "utf-8",
    limit: int = LIMIT,
    part: int = PART,
) -> tuple[list[str], list[DeadLetter]]:
    cutter = LineCutter(
        delimiter=delimiter, encoding=encoding, max_record_bytes=limit, part_bytes=part, buffer_bytes=32
    )
    # A buffer as small as it gets, so that every boundary is met.
    cutter._buffer = bytearray(max(limit + 1, part) + 5)
    cutter._view = memoryview(cutter._buffer)
    cuts: list[Cut] = []
    for piece in pieces:
        cuts.extend(cutter.feed(piece))
    cuts.append(cutter.finish(clean=clean))
    lines: list[str] = []
    letters: list[DeadLetter] = []
    for cut in cuts:
        if cut.lines is not None:
            cut.lines.validate(full=True)
            assert len(cut.lines) > 0
            lines.extend(cut.lines.to_pylist())
        letters.extend(cut.dead_letters)
    return lines, letters


def model(stream: bytes, *, clean: bool, delimiter: bytes, encoding: str) -> tuple[list[str], list[DeadLetter]]:
    """The same by the plainest Python."""
    lines: list[str] = []
    letters: list[DeadLetter] = []

    def aside(reason: DeadLetterReason, raw: bytes) -> None:
        letters.extend(DeadLetter(reason, raw[at : at + PART], n) for n, at in enumerate(range(0, len(raw), PART)))

    *whole, rest = stream.split(delimiter)
    ended = [(raw, True) for raw in whole] + ([(rest, False)] if rest else [])
    for raw, has_end in ended:
        text = raw.removesuffix(b"\r") if has_end and delimiter == b"\n" else raw
        # Of a line that breaks off, a \r may yet turn out to be its end.
        pending_cr = not has_end and not clean and delimiter == b"\n" and text.endswith(b"\r")
        if len(text) > LIMIT and not (pending_cr and len(text) == LIMIT + 1):
            aside(TOO_LARGE, raw)
        elif not has_end and not clean:
            aside(TRUNCATED, raw)
        else:
            try:
                lines.append(text.decode(encoding))
            except UnicodeDecodeError:
                aside(ENCODING, raw)
    return lines, letters


PLAIN = (b"\n", b"\n\n", b"\r\n", b"\r", b"\r\r\n", b"a", b"abc", b"\x00", b";", "ü".encode(), "€".encode())
BROKEN = (b"\xff", b"\xc3", b"\xa9", b"\xe2\x82", b"\xed\xa0\x80")
LONG = (b"x" * 9, b"x" * 10, b"x" * 11, b"y" * 25)
FRAGMENTS = st.sampled_from((*PLAIN, *BROKEN, *LONG))
STREAMS = st.lists(FRAGMENTS, max_size=25).map(b"".join)


@given(
    stream=STREAMS,
    cuts=st.lists(st.integers(0, 300), max_size=30),
    clean=st.booleans(),
    delimiter=st.sampled_from(["\n", ";"]),
    encoding=st.sampled_from(["utf-8", "ascii", "iso8859-1", "cp1252"]),
)
@example(stream=b"x" * 10 + b"\r\n", cuts=[11], clean=True, delimiter="\n", encoding="utf-8")
@example(stream=b"x" * 10 + b"\r", cuts=[], clean=True, delimiter="\n", encoding="utf-8")
@example(stream=b"y" * 14 + b"\n" + b"ok\n", cuts=[7, 14], clean=True, delimiter="\n", encoding="utf-8")
def test_a_stream_cut_in_any_way_gives_the_same(
    stream: bytes, cuts: list[int], clean: bool, delimiter: str, encoding: str
) -> None:
    places = sorted({0, len(stream), *(place for place in cuts if place < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    lines, letters = run(pieces, clean=clean, delimiter=delimiter, encoding=encoding)
    expected_lines, expected_letters = model(stream, clean=clean, delimiter=delimiter.encode(), encoding=encoding)
    assert lines == expected_lines
    # A line aside is put aside when it is cut, all of its parts in a row; the order between lines holds too.
    assert _by_line(letters) == _by_line(expected_letters)


def _by_line(letters: list[DeadLetter]) -> list[tuple[DeadLetterReason, bytes]]:
    joined: list[tuple[DeadLetterReason, bytes]] = []
    for letter in letters:
        if letter.part == 0:
            joined.append((letter.reason, letter.data))
        else:
            reason, data = joined.pop()
            assert reason is letter.reason
            assert len(data) == letter.part * PART
            joined.append((reason, data + letter.data))
    return joined


def test_crlf_loses_one_cr_right_before_the_newline_only() -> None:
    assert run([b"a\r\nb\r\r\nc\rd\n\r\n"]) == (["a", "b\r", "c\rd", ""], [])


def test_crlf_split_between_two_reads() -> None:
    assert run([b"a\r", b"\nb\n"]) == (["a", "b"], [])


def test_cr_belongs_to_the_record_where_another_delimiter_is_set() -> None:
    assert run([b"a\r;b\n;"], delimiter=";") == (["a\r", "b\n"], [])


def test_nul_bytes_stay() -> None:
    assert run([b"\x00a\x00\n\x00\n"]) == (["\x00a\x00", "\x00"], [])


def test_an_empty_line_is_a_record() -> None:
    assert run([b"\n\na\n\n"]) == (["", "", "a", ""], [])


def test_an_empty_stream_gives_nothing() -> None:
    assert run([]) == ([], [])
    assert run([b""], clean=False) == ([], [])


def test_invalid_utf8_goes_aside_whole_and_takes_nothing_with_it() -> None:
    lines, letters = run([b"good\nb\xffd\r\nfine\n\xc3\nend\n"])
    assert lines == ["good", "fine", "end"]
    assert letters == [DeadLetter(ENCODING, b"b\xffd\r"), DeadLetter(ENCODING, b"\xc3")]


def test_a_character_split_between_two_reads_is_whole() -> None:
    assert run([b"\xe2\x82", b"\xac\n"]) == (["€"], [])


def test_many_bad_lines_in_one_chunk() -> None:
    stream = b"".join(b"%d\n\xff%d\n" % (n, n) for n in range(1000))
    cutter = LineCutter()
    (cut,) = cutter.feed(stream)
    assert cut.lines is not None
    assert cut.lines.to_pylist() == [str(n) for n in range(1000)]
    assert [letter.data for letter in cut.dead_letters] == [b"\xff%d" % n for n in range(1000)]


def test_a_line_at_the_limit_is_a_record_and_one_byte_more_is_not() -> None:
    lines, letters = run([b"x" * 10 + b"\n" + b"y" * 11 + b"\n" + b"z" * 10 + b"\r\n"])
    assert lines == ["x" * 10, "z" * 10]
    assert letters == [DeadLetter(TOO_LARGE, b"y" * 7, 0), DeadLetter(TOO_LARGE, b"y" * 4, 1)]


def test_a_line_without_end_goes_aside_in_parts_with_bounded_memory() -> None:
    cutter = LineCutter(max_record_bytes=1000, part_bytes=4096, buffer_bytes=1000)
    size = len(cutter.writable())
    parts: list[DeadLetter] = []
    for _ in range(300):
        for cut in cutter.feed(b"0123456789" * 100):
            assert cut.lines is None
            parts.extend(cut.dead_letters)
    assert len(cutter._buffer) == size
    for cut in cutter.feed(b"tail\r\nnext\n"):
        parts.extend(cut.dead_letters)
        lines = cut.lines
    assert lines is not None
    assert lines.to_pylist() == ["next"]
    assert [letter.part for letter in parts] == list(range(len(parts)))
    assert {len(letter.data) for letter in parts[:-1]} == {4096}
    assert b"".join(letter.data for letter in parts) == b"0123456789" * 30_000 + b"tail\r"


def test_a_last_line_without_newline_is_a_record_when_the_sender_ended() -> None:
    assert run([b"a\nlast"]) == (["a", "last"], [])
    assert run([b"last\r"]) == (["last\r"], [])


def test_a_last_line_is_checked_as_any_other() -> None:
    assert run([b"\xff"]) == ([], [DeadLetter(ENCODING, b"\xff")])
    assert run([b"y" * 11]) == ([], [DeadLetter(TOO_LARGE, b"y" * 7, 0), DeadLetter(TOO_LARGE, b"y" * 4, 1)])


def test_a_line_that_breaks_off_is_a_dead_letter() -> None:
    assert run([b"a\nbroken"], clean=False) == (["a"], [DeadLetter(TRUNCATED, b"broken")])


def test_a_line_that_breaks_off_and_was_too_large_stays_that() -> None:
    assert run([b"y" * 20], clean=False)[1] == [
        DeadLetter(TOO_LARGE, b"y" * 7, 0),
        DeadLetter(TOO_LARGE, b"y" * 7, 1),
        DeadLetter(TOO_LARGE, b"y" * 6, 2),
    ]


def test_a_cutter_serves_the_next_connection_after_a_break() -> None:
    cutter = LineCutter(max_record_bytes=LIMIT, part_bytes=PART)
    list(cutter.feed(b"y" * 30))
    cutter.finish(clean=False)
    (cut,) = cutter.feed(b"a\n")
    assert cut.lines is not None
    assert (cut.lines.to_pylist(), cut.dead_letters) == (["a"], [])


@pytest.mark.parametrize("encoding", ["iso8859-1", "cp1252"])
def test_other_encodings_become_utf8(encoding: str) -> None:
    assert run(["fünf\nça\n".encode(encoding)], encoding=encoding) == (["fünf", "ça"], [])


def test_ascii_puts_everything_else_aside() -> None:
    assert run([b"a\n\xc3\xbc\n"], encoding="ascii") == (["a"], [DeadLetter(ENCODING, b"\xc3\xbc")])
