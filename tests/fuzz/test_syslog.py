"""Fuzz syslog: RFC 3164 and 5424 messages, in datagrams and in streams with either framing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_contrib.syslog.framing import SyslogFraming
from forebay_contrib.syslog.parsing import _ERRORS
from receiver_runtime.block_path.text_check import TextCheck
from tests.fuzz.splits import splits
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

_MOST_BYTES = 300
_NOW = 1_773_144_000_000_000
_MESSAGES = (
    b"<34>Oct 11 22:14:15 mymachine su[12]: 'su root' failed for lonvick",
    b"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!",
    b'<165>1 2003-10-11T22:14:15.003Z host app 123 ID47 [ex@1 a="b\\"]" c="d"][y z="1"] \xef\xbb\xbftext caf\xc3\xa9',
    b"<0>1 - - - - - -",
    b"<30>2026-03-10T12:00:00+01:00 host tag: text",
    b"no priority at all",
    b"<14>x",
)
_WORDS = (
    *(
        b"<",
        b">",
        b"<191>",
        b"<192>",
        b"1 ",
        b"8 <14>",
        b"- ",
        b"[",
        b"]",
        b'["',
        b'a="',
        b"Feb 30 00:00:00",
        b"Dec 31 23:59:60",
    ),
    *(
        b"0000-01-01T00:00:00Z",
        b"9999-12-31T23:59:59.999999-23:59",
        b"2026-02-30T00:00:00Z",
        b"\n5 ",
        b"12 ",
        b"999999999 <",
    ),
)


def _counted(message: bytes) -> bytes:
    return b"%d %b" % (len(message), message)


_STREAMS = (
    b"\n".join(_MESSAGES) + b"\n",
    b"".join(map(_counted, _MESSAGES)),
    b"\n".join(map(_counted, _MESSAGES[:3])) + b"\n" + _MESSAGES[1] + b"\r\n" + _counted(b"<1>a\nb"),
    _counted(b"<1>a") * 80,
    b"\0".join(message.replace(b" ", b"\n") for message in _MESSAGES) + b"\0",
)
_FRAMING = SyslogFraming(timezone="Europe/Berlin", max_record_bytes=_MOST_BYTES, now=lambda: _NOW)
_TEXT = TextCheck(SyslogFraming.schema)


def _checked(rows: pa.RecordBatch | pa.Array | None) -> list[dict[str, Any]]:
    if rows is None:
        return []
    rows.validate(full=True)
    assert _TEXT.is_valid(rows)
    found: list[dict[str, Any]] = rows.drop_columns(["timestamp", "received_at"]).to_pylist()
    times = rows.column("timestamp").cast("int64").to_pylist()
    for row, time in zip(found, times, strict=True):
        row["timestamp"] = time
        assert row["parse_error"] is None or row["parse_error"] in _ERRORS
        assert row["priority"] is None or 0 <= row["priority"] <= 191
        assert len(row["raw"]) <= _MOST_BYTES
        # Where every byte is UTF-8, no part has what the message has not.
        if row["parse_error"] is None:
            assert all(row[name].encode() in row["raw"] for name in ("hostname", "app_name", "message") if row[name])
    return found


def _of_datagrams(datagrams: Sequence[bytes]) -> tuple[list[dict[str, Any]], int]:
    cut = _FRAMING.cut_datagrams(datagrams, ["::ffff:192.0.2.1"] * len(datagrams))
    return _checked(cut.records), len(cut.dead_letters)


def _of_stream(pieces: Sequence[bytes]) -> tuple[list[dict[str, Any]], list[object]]:
    splitter = _FRAMING.open()
    # Bytes behind the piece in the buffer are left over from an earlier read.
    takens = [splitter.take(bytearray(piece + b"\n9 <1>old\n"), len(piece)) for piece in pieces]
    takens.append(splitter.finish(clean=True))
    found = [taken.piece for taken in takens if taken.piece is not None]
    for piece in found:
        piece.peer = "192.0.2.1:514"
    letters: list[object] = [letter.reason for taken in takens for letter in (*taken.before, *taken.after)]
    return _checked(_FRAMING.cut(found).records) if found else [], letters


@fuzzed(
    "syslog_stream",
    valid=_STREAMS,
    words=_WORDS,
    examples=50,
    attacks=[b"8 <14>caf\xc3\xa9<14>x\n", b"1 <" * 1_000, b"9 " * 1_000, b"\n" * 1_500, b"<1>1 " * 300 + b"\n"],
)
def test_a_stream_gives_the_same_rows_however_it_is_cut(stream: bytes) -> None:
    expected: tuple[list[dict[str, Any]], list[object]] | None = None
    for pieces in splits(stream):
        found = _of_stream(pieces)
        if expected is None:
            expected = found
            assert len(found[0]) + len(found[1]) <= len(stream) + 1
            assert sum(len(row["raw"]) for row in found[0]) <= len(stream)
        # Whether a newline is text in a message that a NUL ends may depend on where the reads end.
        assert found == expected or b"\0" in stream
    assert expected is not None
    # Each message is read by itself: its neighbours in the stream change nothing.
    alone = [_of_datagrams([row["raw"]])[0][0] for row in expected[0][:5]]
    assert alone == expected[0][:5]


@fuzzed("syslog_datagrams", valid=[b"\0\0".join(_MESSAGES), *_MESSAGES], words=[*_WORDS, b"\0\0"], examples=50)
def test_datagrams_that_are_read_together_do_not_change_each_other(data: bytes) -> None:
    datagrams = data.split(b"\0\0")
    rows, letters = _of_datagrams(datagrams)
    assert len(rows) + letters == len(datagrams)
    assert [row["raw"] for row in rows] == [one for one in datagrams if len(one) <= _MOST_BYTES]
    assert rows == [row for one in datagrams for row in _of_datagrams([one])[0]]
