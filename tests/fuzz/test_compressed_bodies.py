"""Fuzz the decompression of request bodies."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress

import pyarrow as pa

from receiver_runtime.receivers.http.requests.decompression import decompressed
from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from tests.fuzz.http_bodies import check_refusal
from tests.fuzz.target import fuzzed

_MOST_BYTES = 2**20
_TEXT = b'[{"a": 1}, {"b": "two"}]\n' * 20
_RANDOM = bytes(zlib.crc32(b"%d" % n) % 256 for n in range(900))
_GZIP = [gzip.compress(_TEXT, mtime=0), gzip.compress(_RANDOM, mtime=0), gzip.compress(b"", mtime=0)]
_ZSTD = [pa.Codec("zstd").compress(text, asbytes=True) for text in (_TEXT, _RANDOM)]


def _taken(body: bytes, encoding: str) -> bytes | None:
    counted: list[int] = []
    limits = ParsingLimits(on_grown=counted.append)
    try:
        whole = decompressed(body, encoding, most_bytes=_MOST_BYTES, limits=limits)
    except PushRefusedError as error:
        check_refusal(error)
        assert sum(counted) <= _MOST_BYTES
        return None
    # What came without an encoding was counted as it came.
    assert sum(counted) in {len(whole), 0 if whole == body else len(whole)}
    assert len(whole) <= _MOST_BYTES
    return whole


@fuzzed(
    "http_gzip",
    valid=[*_GZIP, _GZIP[0] + _GZIP[1]],
    words=[b"\x1f\x8b\x08", *_GZIP],
    attacks=[gzip.compress(b"[]," * 2**20), _GZIP[0] * 300],
)
def test_gzip_gives_what_was_compressed_or_is_refused(body: bytes) -> None:
    whole = _taken(body, "gzip")
    if whole is None:
        return
    with suppress(OSError, EOFError, zlib.error):
        assert whole == gzip.decompress(body)
    # A body that was cut short is not taken for a whole one.
    decoder = zlib.decompressobj(31)
    decoder.decompress(body)
    assert decoder.eof or not body


@fuzzed(
    "http_zstd",
    valid=[*_ZSTD, _ZSTD[0] + _ZSTD[1]],
    words=[b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18\x04\0\0\0skip", *_ZSTD],
    attacks=[pa.Codec("zstd").compress(bytes(2**24), asbytes=True)],
)
def test_zstd_gives_what_was_compressed_or_is_refused(body: bytes) -> None:
    whole = _taken(body, "zstd")
    if whole is not None and body in _ZSTD:
        assert whole in {_TEXT, _RANDOM}


@fuzzed("http_content_encoding", valid=[b"gzip", b"x-gzip", b"zstd", b"identity", b""], attacks=[b"z" * 9000])
def test_any_encoding_is_known_or_refused(encoding: bytes) -> None:
    _taken(_GZIP[0], encoding.decode("latin-1"))
