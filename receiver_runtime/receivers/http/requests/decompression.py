"""Decompress a request's body within a limit: a small body that grows without end is refused.

This module never reads from a connection, and knows neither a server nor a source.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODECS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd", "br": "brotli"}
#: The value of ``Accept-Encoding`` in an answer.
ENCODINGS = "gzip, deflate, br, zstd, snappy, identity"
_SNAPPY = "snappy"
_LENGTH_BYTES = 5  # of a snappy block's length, at most
_DEFLATE = "deflate"
_LONGEST = 60  # characters of a header in a refusal
# The one list of codings that known senders send, Python's GELF clients: they mean that the body has one of these.
_EITHER = ["gzip", _DEFLATE]
_GZIP_BEGINNING, _ZSTD_BEGINNING = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
_PIECE_BYTES = 2**18  # how much to decompress before the limit is checked again


def decompressed(body: bytes, encoding: str | None, *, most_bytes: int, limits: ParsingLimits = UNLIMITED) -> bytes:
    """Return the body as it was before its Content-Encoding. Hold at most ``most_bytes`` and one piece.

    Each piece is counted by ``limits`` before the next one is decompressed.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 415 for an encoding that is not known, 400 for bytes that are not of it, 413 beyond the limit.
    """
    name = (encoding or "identity").strip().lower()
    listed = name.split(",") if "," in name else ()
    if listed:
        name = _coding_of(body, name)
    if name in {"identity", ""}:
        return body
    if name == _SNAPPY:
        return unsnapped(body, most_bytes=most_bytes, limits=limits)
    codec = _CODECS.get(name)
    if codec is None and name != _DEFLATE:
        raise PushRefusedError(415, f"Content-Encoding: {encoding!r} is not read here: send one of {ENCODINGS}")
    pieces: list[pa.Buffer | bytes] = []
    size = 0
    try:
        for piece in _inflated(body) if codec is None else _streamed(body, codec):
            size += len(piece)
            if size > most_bytes:
                raise PushRefusedError(
                    413, f"body: more than {most_bytes} bytes when decompressed, which is max_body_bytes: send less"
                )
            limits.grown(len(piece))
            pieces.append(piece)
        whole = b"".join(pieces)
    except (pa.ArrowException, OSError, zlib.error) as error:
        raise PushRefusedError(400, f"Content-Encoding: the body is no whole {name}: {error}") from error
    finally:
        # A refusal keeps nothing of what it is about.
        pieces.clear()
    if listed and _is_encoded(whole):
        raise PushRefusedError(415, f"Content-Encoding: the body is encoded twice ({name} first): send it once")
    return whole


def _coding_of(body: bytes, listed: str) -> str:
    """Return the coding that a body has of those that a header lists. Raises PushRefusedError: 415, it has none.

    A list means that the body was encoded several times (RFC 9110), which is not undone here.
    """
    if [name.strip() for name in listed.split(",")] == _EITHER:
        if body.startswith(_GZIP_BEGINNING):
            return "gzip"
        if _is_zlib(body):
            return _DEFLATE
    raise PushRefusedError(
        415, f"Content-Encoding: {shortened(listed, _LONGEST)!r}: the body is not one of these alone: send one"
    )


def _is_encoded(body: bytes) -> bool:
    """Return whether a body begins as one of a known coding, and as no text that a sender is likely to send."""
    is_text = b" " <= body[1:2] <= b"~"
    return body.startswith((_GZIP_BEGINNING, _ZSTD_BEGINNING, b"\x78\x5e")) or (_is_zlib(body) and not is_text)


def _is_zlib(body: bytes) -> bool:
    # RFC 1950: the first byte names deflate, and the first two are a multiple of 31.
    return len(body) > 1 and body[0] & 15 == zlib.DEFLATED and not int.from_bytes(body[:2], "big") % 31


def unsnapped(body: bytes, *, most_bytes: int, limits: ParsingLimits = UNLIMITED) -> bytes:
    """Return what a block of snappy holds, in the raw format, which begins with its length.

    Raises as ``decompressed``.
    """
    size = 0
    for place, octet in enumerate(body[:_LENGTH_BYTES]):
        size |= (octet & 0x7F) << 7 * place
        if octet < 0x80:  # noqa: PLR2004  the last one
            break
    if size > most_bytes:
        raise PushRefusedError(413, f"body: {size} bytes when decompressed, max_body_bytes is {most_bytes}: send less")
    limits.grown(size)
    try:
        # It takes no other length than the block's.
        whole: bytes = pa.decompress(body, decompressed_size=size, codec=_SNAPPY, asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise PushRefusedError(400, f"body: it is no whole block of snappy: {error}") from error
    return whole


def _streamed(body: bytes, codec: str) -> Iterator[pa.Buffer]:
    with pa.input_stream(pa.BufferReader(body), compression=codec) as stream:
        # Not `read`: where it fails, pyarrow never frees the bytes that it had made room for.
        while len(piece := stream.read_buffer(_PIECE_BYTES)):
            yield piece


def _inflated(body: bytes) -> Iterator[bytes]:
    """Yield the pieces of a deflated body: in zlib's format, as RFC 9110 has it, or without, as some senders do."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS if _is_zlib(body) else -zlib.MAX_WBITS)
    data = body
    while not inflater.eof:
        piece = inflater.decompress(data, _PIECE_BYTES)
        if not piece and not inflater.unconsumed_tail and not inflater.eof:
            raise zlib.error("it is cut short")
        data = inflater.unconsumed_tail
        if piece:
            yield piece
    if inflater.unused_data:
        raise zlib.error(f"{len(inflater.unused_data)} bytes follow it")
