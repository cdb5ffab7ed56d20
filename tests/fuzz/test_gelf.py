"""Fuzz GELF: datagrams whole and in chunks, streams in which a NUL ends each message, and requests."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay_contrib.gelf.chunks import MAGIC
from forebay_contrib.gelf.declaration import Gelf
from forebay_contrib.gelf.framing import GelfFraming
from forebay_contrib.gelf.protocol import parse_messages
from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, PushedRows
from tests.fuzz.http_bodies import MOST_BYTES, check_rows, limits, refused
from tests.fuzz.splits import splits
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.block_store.frames.frame import DeadLetterReason
    from receiver_runtime.receivers.framing import Cut

_MOST_BYTES = 300
_MOST_CHUNK_BYTES = 2**18
_BETWEEN = b"\xff\xfe\xff"  # what separates the datagrams of an example
_MESSAGE = b'{"version":"1.1","host":"h","short_message":"a \\"b\\" }{","timestamp":1.5,"_x":[{}]}'
_PACKED = zlib.compress(_MESSAGE)
_MESSAGES = (
    _MESSAGE,
    b' {"message":"caf\xc3\xa9"}\r\n',
    b'{"short_message":"x","full_message":"%b"}' % (b"y" * 250),
    b'{"host":null,"short_message":"x"}',
    b'{"short_message":"x","_a":"\xff"}',
    b'{"short_message":" "}{}',
)
_CHUNKS = [MAGIC + b"12345678" + bytes((n, 3)) + _PACKED[n * 30 : n * 30 + 30 + n * 99] for n in range(3)]
_WORDS = (
    MAGIC,
    _BETWEEN,
    b'"short_message":',
    b'"host":""',
    b"}\n{",
    b"\0",
    b"\x1f\x8b\x08",
    b"\x78\x9c",
    b"[" * 500,
    b"NaN",
)
_TEXT = TextCheck(GelfFraming.schema)


def _framing() -> GelfFraming:
    source = Gelf(listen="127.0.0.1:1", max_record_bytes=_MOST_BYTES, max_chunk_bytes=_MOST_CHUNK_BYTES)
    return GelfFraming(source, now=lambda: 0, clock=lambda: 0.0)


def _checked(cuts: Iterable[Cut]) -> tuple[list[dict[str, Any]], list[DeadLetter]]:
    rows: list[dict[str, Any]] = []
    letters: list[DeadLetter] = []
    for cut in cuts:
        letters += cut.dead_letters
        if cut.records is not None:
            assert isinstance(cut.records, pa.RecordBatch)
            cut.records.validate(full=True)
            assert _TEXT.is_valid(cut.records)
            rows += cut.records.to_pylist()
    for row in rows:
        assert len(row["value"].encode()) <= _MOST_BYTES
        found = json.loads(row["value"])
        assert (found.get("short_message") or found["message"]).strip()
    for letter in letters:
        assert len(letter.why) < 500
    return rows, letters


def _of_datagrams(datagrams: Sequence[bytes]) -> tuple[list[dict[str, Any]], list[DeadLetter]]:
    framing = _framing()
    found = _checked(framing.cut_datagrams(datagrams, ["::ffff:192.0.2.1"] * len(datagrams)))
    assert framing.chunks.nbytes <= _MOST_CHUNK_BYTES
    rest = framing.chunks.end().dead_letters
    assert framing.chunks.nbytes == 0
    return found[0], [*found[1], *rest]


@fuzzed(
    "gelf_datagrams",
    valid=[_BETWEEN.join(_CHUNKS), _BETWEEN.join(_MESSAGES), _PACKED, gzip.compress(_MESSAGE, mtime=0), *_CHUNKS],
    words=_WORDS,
    attacks=[
        zlib.compress(bytes(2**24)),
        _BETWEEN.join(MAGIC + b"%08d" % n + b"\0\2x" for n in range(1000)),
        _BETWEEN.join(MAGIC + b"12345678" + bytes((n % 256, 200)) for n in range(500)),
        b'{"a":' * 50_000,
        b'{"short_message":"' + b"\\" * 100_000,
    ],
)
def test_datagrams_are_messages_or_dead_letters_each_by_itself(data: bytes) -> None:
    datagrams = data.split(_BETWEEN)
    rows, letters = _of_datagrams(datagrams)
    assert len(rows) + len(letters) <= len(datagrams)
    whole = [one for one in datagrams if not one.startswith(MAGIC)]
    if len(whole) == len(datagrams):
        # What is read together does not change each other, and nothing is lost but blanks.
        alone = [_of_datagrams([one]) for one in whole[:10]]
        assert rows[: sum(len(found) for found, _ in alone)] == [row for found, _ in alone for row in found]
        assert all(found or letter or not one.strip() for one, (found, letter) in zip(whole, alone, strict=False))
    else:
        # Each chunk is in a row, in a dead letter, or came twice.
        kept = b"".join(letter.data for letter in letters)
        assert rows or letters or not b"".join(whole).strip()
        assert len(kept) <= sum(map(len, datagrams))


@fuzzed(
    "gelf_stream",
    valid=[b"\0".join(_MESSAGES) + b"\0", b"\0".join(_MESSAGES), _MESSAGE + b"\n\0\0" + _MESSAGE],
    words=_WORDS,
    examples=60,
    attacks=[b"\0" * 1_500, b"{}\0" * 500, b"{" * 1_500],
)
def test_a_stream_gives_the_same_rows_however_it_is_cut(stream: bytes) -> None:
    expected: tuple[list[dict[str, Any]], list[tuple[DeadLetterReason, bytes]]] | None = None
    for pieces in splits(stream):
        framing = _framing()
        splitter = framing.open()
        takens = [splitter.take(bytearray(piece + b"\0old\0"), len(piece)) for piece in pieces]
        takens.append(splitter.finish(clean=True))
        found = [taken.piece for taken in takens if taken.piece is not None]
        for piece in found:
            piece.peer = "192.0.2.1:514"
        rows, letters = _checked([framing.cut(found)])
        letters += [letter for taken in takens for letter in (*taken.before, *taken.after)]
        result = rows, sorted((letter.reason, letter.data) for letter in letters)
        assert expected is None or result == expected
        expected = result
        assert len(rows) + len(letters) <= stream.count(b"\0") + 1


_SOURCE = Http(listen="127.0.0.1:0", max_record_bytes=MOST_BYTES)


@fuzzed(
    "gelf_http",
    valid=[_MESSAGE, b"\r\n".join([_MESSAGE, *_MESSAGES]), b'{\n"short_message":\n"x"}', _PACKED],
    words=_WORDS,
    attacks=[b"{}\n" * 200_000, b'{"short_message":"x"}\n' * 50_000, b"[" * 300_000, zlib.compress(bytes(2**26))],
)
def test_any_request_is_rows_dead_letters_or_refused(body: bytes) -> None:
    found = refused(parse_messages, [(TARGET_PATH, b"/gelf")], body, _SOURCE, limits())
    if found is not None:
        assert isinstance(found, PushedRows)
        for row in check_rows(found, max(body, _PACKED, key=len) if body.startswith((b"x", b"\x1f")) else body):
            json.loads(row["body"])
