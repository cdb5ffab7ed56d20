"""Decode the bodies of requests: by their charset, and by a byte-order mark, which belongs to no record.

The one place for that, for plain requests and all protocols. An unknown charset is refused, and never guessed. It must
never look at what a body says.
"""

from __future__ import annotations

from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.sources.fields.text_encoding import MARK_BYTES, Marked, by_mark, check_encoding

#: Charsets that are UTF-8, and no charset.
UTF8 = frozenset({None, "utf-8", "utf8", "us-ascii"})


def encoding_of(kind: str, charset: str | None, body: bytes) -> Marked:
    """Return the encoding of a body of text. Raises PushRefusedError: 415, its charset is not known here."""
    try:
        declared = "utf-8" if charset in UTF8 else check_encoding(charset or "")
    except ValueError as error:
        raise PushRefusedError(
            415,
            f"Content-Type: {kind} in charset {charset} is not read here: send UTF-8, or declare body='whole' to store "
            "bodies as they are",
        ) from error
    return by_mark(body[:MARK_BYTES], declared)


def json_in_utf8(kind: str, charset: str | None, body: bytes) -> bytes:
    """Return JSON as UTF-8 without a mark. What declares or has none is not checked.

    Raises:
        PushRefusedError: 415 for an unknown charset, 400 for bytes that are none of it.
    """
    encoding, mark = encoding_of(kind, charset, body)
    if encoding == "utf-8":
        return body[mark:] if mark else body
    try:
        return body[mark:].decode(encoding).encode()
    except UnicodeDecodeError as error:
        raise PushRefusedError(400, f"body: no {encoding} at byte {error.start}: send JSON in UTF-8") from error


def looked_at(charset: str | None, body: bytes) -> bytes:
    """Return a body as text whose form can be looked at: in UTF-8 without a mark, where it can be decoded."""
    try:
        return json_in_utf8("", charset, body)
    except PushRefusedError:
        return body
