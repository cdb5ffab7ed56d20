"""Say which texts are messages of GELF, and undo their compression. Knows no transport.

What Graylog takes is taken: a message needs a ``short_message``, or a ``message``; its ``host`` may be missing; its
``version`` is not checked. Nothing of a message is changed.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

from receiver_runtime.block_store.frames.frame import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BLANKS = b" \t\r\n"
_OPENING, _CLOSING = b"{", b"}"
_GZIP = b"\x1f\x8b"
_ZLIB = 0x78  # first byte of zlib's format, with the window that senders use
_AUTO_WBITS = zlib.MAX_WBITS | 32  # gzip's format or zlib's, as the first bytes say
_LEAST_BYTES = 2

UNPARSABLE, DOES_NOT_FIT = DeadLetterReason.UNPARSABLE, DeadLetterReason.DOES_NOT_FIT


class _Message(msgspec.Struct, gc=False):
    """Hold what a message must have."""

    host: str | msgspec.UnsetType = msgspec.UNSET
    short_message: str | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET


_MESSAGE = msgspec.json.Decoder(_Message)


class NoMessageError(ValueError):
    """Signal why something is no message of GELF; the text is for people."""

    def __init__(self, reason: DeadLetterReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def errors_in(texts: Sequence[bytes]) -> Mapping[int, NoMessageError]:
    """Return why texts are no messages, by their places. A text is judged by itself, whatever stands beside it."""
    found = _at_once(texts)
    if found is None:
        return dict(_one_by_one(texts))
    return {place: error for place, message in enumerate(found) if (error := _error_of(message)) is not None}


def judge_letters(_: object, reason: str, letters: Sequence[bytes]) -> Mapping[int, str]:
    """Return why dead letters are no messages, by their places; see ``Source.refusals``."""
    del reason
    return {place: str(error) for place, error in errors_in(letters).items()}


def _at_once(texts: Sequence[bytes]) -> Sequence[_Message] | None:
    """Return the messages by one call of the parser; None: something is wrong with one of them.

    The parser goes on where one object ends, so it does not know where a text ends. But it refuses a line end within a
    string: so the one between two texts is between two tokens, the closing brace before it and the opening one behind
    it. In JSON, these follow one another only at the top level. So each text has whole objects, and if there are as
    many objects as texts, each has exactly one.
    """
    bare = [text.strip(BLANKS) for text in texts]
    if not all(text[:1] == _OPENING and text[-1:] == _CLOSING for text in bare):
        return None
    joined = b"\n".join(bare)
    try:
        # The parser does not look at the bytes of strings that it passes over.
        if not joined.isascii():
            joined.decode()
        found: list[_Message] = _MESSAGE.decode_lines(joined)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    return found if len(found) == len(texts) else None


def _one_by_one(texts: Sequence[bytes]) -> Iterable[tuple[int, NoMessageError]]:
    for place, text in enumerate(texts):
        try:
            text.decode()
            error = _error_of(_MESSAGE.decode(text))
        except UnicodeDecodeError as wrong:
            error = NoMessageError(DeadLetterReason.INVALID_ENCODING, f"no UTF-8 at byte {wrong.start}")
        except msgspec.ValidationError as wrong:
            error = NoMessageError(DOES_NOT_FIT, str(wrong))
        except (msgspec.DecodeError, RecursionError) as wrong:
            error = NoMessageError(UNPARSABLE, str(wrong))
        if error is not None:
            yield place, error


def _error_of(message: _Message) -> NoMessageError | None:
    if isinstance(message.host, str) and _is_blank(message.host):
        return NoMessageError(DOES_NOT_FIT, "the member host is empty: name the sender, or leave it out")
    if isinstance(message.short_message, str) and not _is_blank(message.short_message):
        return None
    if isinstance(message.message, str) and not _is_blank(message.message):
        return None
    is_there = isinstance(message.short_message, str) or isinstance(message.message, str)
    return NoMessageError(DOES_NOT_FIT, f"the member short_message is {'empty' if is_there else 'missing'}: give it")


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


def is_compressed(data: bytes) -> bool:
    """Return whether data begin as a message that its sender has compressed, by gzip or zlib."""
    if data[:_LEAST_BYTES] == _GZIP:
        return True
    # RFC 1950: the first two bytes are a multiple of 31.
    return data[:1] == bytes([_ZLIB]) and not int.from_bytes(data[:_LEAST_BYTES], "big") % 31


def inflated(data: bytes, most_bytes: int) -> bytes:
    """Return what was compressed by gzip or zlib. Holds at most ``most_bytes`` and one byte of it.

    Raises:
        NoMessageError: it is longer, or not whole, or something follows it.
    """
    inflater = zlib.decompressobj(_AUTO_WBITS)
    try:
        text = inflater.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise NoMessageError(UNPARSABLE, f"it can't be decompressed: {error}") from error
    if len(text) > most_bytes:
        raise NoMessageError(
            DeadLetterReason.RECORD_TOO_LARGE, f"more than {most_bytes} bytes, decompressed, which is max_record_bytes"
        )
    if not inflater.eof:
        raise NoMessageError(UNPARSABLE, "it can't be decompressed: it is cut short")
    if inflater.unused_data:
        raise NoMessageError(UNPARSABLE, f"{len(inflater.unused_data)} bytes follow what was compressed")
    return text
