from __future__ import annotations

import codecs
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.receivers.sockets.text_declaration import SocketText

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from receiver_runtime.receivers.framing import Taken
    from receiver_runtime.receivers.lines import LineSplitter

ENCODING = DeadLetterReason.INVALID_ENCODING
TOO_LARGE = DeadLetterReason.RECORD_TOO_LARGE
TRUNCATED = DeadLetterReason.TRUNCATED

LIMIT = 10
PART = 7


# The smallest buffer possible, so that every boundary occurs.
READ = 5


def feed(splitter: LineSplitter, data: bytes, *, read: int = 2**20) -> Iterator[Taken]:
    buffer = bytearray(read)
    for start in range(0, len(data), read):
        piece = data[start : start + read]
        buffer[: len(piece)] = piece
        yield splitter.take(buffer, len(piece))


def records(framing: LineFraming, takens: Iterable[Taken]) -> tuple[list[str], list[DeadLetter]]:
    lines: list[str] = []
    letters: list[DeadLetter] = []
    for taken in takens:
        letters.extend(taken.before)
        if taken.piece is not None:
            cut = framing.cut([taken.piece])
            if cut.records is not None:
                cut.records.validate(full=True)
                assert len(cut.records) > 0
                lines.extend(cut.records.to_pylist())
            letters.extend(cut.dead_letters)
        letters.extend(taken.after)
    return lines, letters


def framing_of(
    *, delimiter: str | bytes = "\n", encoding: str = "utf-8", limit: int = LIMIT, part: int = PART
) -> LineFraming:
    source = SocketText(host="a", port=1, delimiter=delimiter, encoding=encoding)
    return LineFraming(
        delimiter=source.delimiter_bytes,
        encoding=source.encoding,
        one_byte=source.one_byte,
        max_record_bytes=limit,
        letter_bytes=part,
    )


def too_large(raw: bytes) -> DeadLetter:
    return DeadLetter(TOO_LARGE, raw[:PART], left_out=max(0, len(raw) - PART))


def run(
    pieces: list[bytes], *, clean: bool = True, delimiter: str | bytes = "\n", encoding: str = "utf-8"
) -> tuple[list[str], list[DeadLetter]]:
    framing = framing_of(delimiter=delimiter, encoding=encoding)
    splitter = framing.open()
    takens = [taken for piece in pieces for taken in feed(splitter, piece, read=READ)]
    return records(framing, [*takens, splitter.finish(clean=clean)])


def model(stream: bytes, *, clean: bool, delimiter: bytes, encoding: str) -> tuple[list[str], list[DeadLetter]]:
    """Do the same in plain Python."""
    lines: list[str] = []
    letters: list[DeadLetter] = []

    def aside(reason: DeadLetterReason, raw: bytes) -> None:
        if reason is TOO_LARGE:
            letters.append(too_large(raw))
            return
        letters.append(DeadLetter(reason, raw[:PART], left_out=max(0, len(raw) - PART)))

    *whole, rest = stream.split(delimiter)
    ended = [(raw, True) for raw in whole] + ([(rest, False)] if rest else [])
    for raw, has_end in ended:
        text = raw.removesuffix(b"\r") if has_end and delimiter == b"\n" else raw
        # If a record breaks off, its last bytes may still turn out to be the start of a delimiter, so they do not
        # count.
        ending = b"\r\n" if delimiter == b"\n" else delimiter
        least = min((len(text) - n for n in range(len(ending)) if text.endswith(ending[:n])), default=len(text))
        if (len(text) if has_end or clean else least) > LIMIT:
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
OTHER = (b"|", b"||", b"aba", b"ab", b"\xa7", "§".encode(), "日".encode(), "日".encode("cp932"), b"\x8e\xb1")
BROKEN = (b"\xff", b"\xc3", b"\xa9", b"\xe2\x82", b"\xed\xa0\x80")
LONG = (b"x" * 9, b"x" * 10, b"x" * 11, b"y" * 25)
FRAGMENTS = st.sampled_from((*PLAIN, *OTHER, *BROKEN, *LONG))
STREAMS = st.lists(FRAGMENTS, max_size=25).map(b"".join)


# Delimiters of one byte and of several, whose matches may or may not overlap, and some that are not text.
DELIMITERS = (b"\n", b";", b"\0", b"\r\n", b"||", b"aba", b"aab", b"\xff", "§".encode(), b"\r\n\r\n", b"a;b;a;b;a")
ENCODINGS = ("utf-8", "ascii", "iso8859-1", "cp1252", "cp866", "koi8-r", "cp932", "gb18030", "euc_jp", "big5")


# No deadline: the first call into Arrow takes longer than the rest.
@settings(deadline=None)
@given(
    stream=STREAMS,
    cuts=st.lists(st.integers(0, 300), max_size=30),
    clean=st.booleans(),
    delimiter=st.sampled_from(DELIMITERS),
    encoding=st.sampled_from(ENCODINGS),
)
@example(stream=b"x" * 10 + b"\r\n", cuts=[11], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"x" * 10 + b"\r", cuts=[], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"y" * 14 + b"\n" + b"ok\n", cuts=[7, 14], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"|||a||||", cuts=[1, 2], clean=True, delimiter=b"||", encoding="utf-8")
@example(stream=b"ababa", cuts=[3], clean=False, delimiter=b"aba", encoding="utf-8")
@example(stream=b"x" * 10 + b"ab", cuts=[11], clean=False, delimiter=b"aba", encoding="utf-8")
@example(stream=b"y" * 25 + b"ab" + b"aok", cuts=[26], clean=True, delimiter=b"aba", encoding="utf-8")
@example(stream=b"a\r\nb\r\r\nc\rd\n\r\n", cuts=[], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"a\r\nb\n", cuts=[2], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"a\r;b\n;", cuts=[], clean=True, delimiter=b";", encoding="utf-8")
@example(stream=b"\x00a\x00\n\x00\n\n", cuts=[], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"", cuts=[], clean=False, delimiter=b"\n", encoding="utf-8")
@example(stream=b"good\nb\xffd\r\nfine\n\xc3\nend\n", cuts=[], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"\xe2\x82\xac\n", cuts=[2], clean=True, delimiter=b"\n", encoding="utf-8")
@example(
    stream=b"x" * 10 + b"\n" + b"y" * 11 + b"\n" + b"z" * 10 + b"\r\n",
    cuts=[],
    clean=True,
    delimiter=b"\n",
    encoding="utf-8",
)
@example(stream=b"a\nlast\r", cuts=[], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"a\n\xff", cuts=[], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"y" * 11, cuts=[], clean=True, delimiter=b"\n", encoding="utf-8")
@example(stream=b"a\nbroken", cuts=[], clean=False, delimiter=b"\n", encoding="utf-8")
@example(stream=b"y" * 20, cuts=[], clean=False, delimiter=b"\n", encoding="utf-8")
@example(stream="fünf\nça\n".encode("cp1252"), cuts=[], clean=True, delimiter=b"\n", encoding="cp1252")
@example(stream=b"a\n\xc3\xbc\n", cuts=[], clean=True, delimiter=b"\n", encoding="ascii")
@example(
    stream="fünf".encode() + b"\xffd\xc3\xa7\xff\xc3\xff", cuts=[], clean=True, delimiter=b"\xff", encoding="utf-8"
)
@example(stream="日本\nソ表\n".encode("shift_jis"), cuts=[], clean=True, delimiter=b"\n", encoding="cp932")
def test_a_stream_cut_in_any_way_gives_the_same(
    stream: bytes, cuts: list[int], clean: bool, delimiter: bytes, encoding: str
) -> None:
    assume(encoding not in ("cp932", "gb18030", "euc_jp", "big5") or max(delimiter) < 0x30)
    places = sorted({0, len(stream), *(place for place in cuts if place < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    lines, letters = run(pieces, clean=clean, delimiter=delimiter, encoding=encoding)
    expected_lines, expected_letters = model(stream, clean=clean, delimiter=delimiter, encoding=encoding)
    assert lines == expected_lines
    assert letters == expected_letters


# No deadline: the first call into Arrow takes longer than the rest.
@settings(deadline=None)
@given(
    streams=st.lists(STREAMS, min_size=1, max_size=5),
    turns=st.lists(st.tuples(st.integers(0, 4), st.integers(1, READ)), max_size=60),
    delimiter=st.sampled_from(DELIMITERS),
)
def test_connections_that_are_cut_together_give_the_same_as_each_alone(
    streams: list[bytes], turns: list[tuple[int, int]], delimiter: bytes
) -> None:
    framing = framing_of(delimiter=delimiter)
    splitters = [framing.open() for _ in streams]
    left = list(streams)
    takens: list[Taken] = []
    rest = [(n % len(streams), READ) for n in range(len(streams) * 60)]
    for number, count in [*((n % len(streams), count) for n, count in turns), *rest]:
        piece, left[number] = left[number][:count], left[number][count:]
        buffer = bytearray(piece.ljust(READ, b"?"))
        takens.append(splitters[number].take(buffer, len(piece)))
    takens += [splitter.finish(clean=True) for splitter in splitters]
    cut = framing.cut([taken.piece for taken in takens if taken.piece is not None])
    got = [] if cut.records is None else cut.records.to_pylist()
    alone = [run([stream], delimiter=delimiter) for stream in streams]
    assert sorted(got) == sorted(line for lines, _ in alone for line in lines)
    letters = [*cut.dead_letters, *(letter for taken in takens for letter in (*taken.before, *taken.after))]
    assert sorted((letter.reason, letter.left_out, letter.data) for letter in letters) == sorted(
        (letter.reason, letter.left_out, letter.data) for _, letters in alone for letter in letters
    )


def test_many_bad_lines_in_one_chunk() -> None:
    stream = b"".join(b"%d\n\xff%d\n" % (n, n) for n in range(1000))
    framing = LineFraming()
    lines, letters = records(framing, feed(framing.open(), stream))
    assert lines == [str(n) for n in range(1000)]
    assert [letter.data for letter in letters] == [b"\xff%d" % n for n in range(1000)]


def test_of_an_endless_line_the_beginning_is_kept_and_the_rest_is_counted() -> None:
    framing = LineFraming(max_record_bytes=1000, letter_bytes=4096)
    splitter = framing.open()
    for _ in range(300):
        assert records(framing, feed(splitter, b"0123456789" * 100)) == ([], [])
        assert len(splitter._held) <= 1000
    lines, letters = records(framing, feed(splitter, b"tail\r\nnext\n"))
    assert lines == ["next"]
    whole = b"0123456789" * 30_000 + b"tail\r"
    assert letters == [DeadLetter(TOO_LARGE, whole[:4096], left_out=len(whole) - 4096)]


@pytest.mark.parametrize("read", [1, 2, 5, 100])
def test_a_mark_at_a_streams_beginning_belongs_to_no_record(read: int) -> None:
    framing = framing_of()
    for stream, expected in (
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
        (b"\xef\xbb\xbfone", ["one"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\n", []),
    ):
        splitter = framing.open()
        takens = [*feed(splitter, stream, read=read), splitter.finish(clean=True)]
        assert records(framing, takens)[0] == expected


def test_a_splitter_is_reusable_after_a_break() -> None:
    framing = framing_of()
    splitter = framing.open()
    list(feed(splitter, b"y" * 30))
    splitter.finish(clean=False)
    assert records(framing, feed(splitter, b"a\n")) == (["a"], [])


@pytest.mark.parametrize("length", [10, 11])
@pytest.mark.parametrize("cut", range(16))
def test_a_mark_does_not_count_in_the_size_of_a_record_however_it_arrives(length: int, cut: int) -> None:
    data = codecs.BOM_UTF8 + b"x" * length + b"\n"
    framing = LineFraming(max_record_bytes=10)
    splitter = framing.open()
    takens = [splitter.take(bytearray(chunk), len(chunk)) for chunk in (data[:cut], data[cut:])]
    found, letters = records(framing, takens)
    assert (found, len(letters)) == (([], 1) if length > 10 else (["x" * 10], 0))
