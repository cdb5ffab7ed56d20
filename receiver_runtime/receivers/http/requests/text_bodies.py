"""Decode the bodies of requests: by their charset, and by a byte-order mark, which belongs to no record.

The one place for that, for plain requests and all protocols. An unknown charset is refused, and never guessed. It must
never look at what a body says.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from receiver_runtime.receivers.http.requests.pushed import PushRefusedError, media_type
from receiver_runtime.sources.fields.text_encoding import MARK_BYTES, Marked, by_mark, check_encoding, unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.requests.pushed import RejectedRecord

#: Charsets that are UTF-8, and no charset.
UTF8 = frozenset({None, "utf-8", "utf8", "us-ascii"})
_CHARSET = re.compile(r"""(;\s*charset\s*=\s*)("[^"]*"|[^;\s]*)""", re.IGNORECASE)
_UTF32 = {"utf-32-le": np.dtype("<u4"), "utf-32-be": np.dtype(">u4")}
_HALF = 0xDFFF  # of a surrogate pair
# JSON begins with two characters of ASCII: so begins UTF-16 or UTF-32 of it without a mark, and no JSON in UTF-8.
_UNMARKED = re.compile(rb"\0[^\0]\0[^\0]|[^\0]\0[^\0]\0|\0\0\0[^\0]|[^\0]\0\0\0")
_NOT_UTF8 = re.compile(r"no UTF-8 (at|from) byte \d+( on)?(: send JSON in UTF-8)?")


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


class JsonText:
    """Hold JSON in UTF-8 without a mark, and what it was sent as.

    A character that is none of its encoding stands as half of a surrogate pair, which is no UTF-8: so a parser rejects
    the element that holds it, and no other. Text that is sent as UTF-8 is not checked.

    Args:
        fault: why its sender must correct it, if it is one value; None: nothing is wrong, or it is not checked.
    """

    def __init__(self, sent: bytes, encoding: str, mark: int) -> None:
        self._sent = sent[mark:] if mark else sent
        self._encoding = encoding
        self.fault: str | None = None
        self.is_decoded = encoding != "utf-8"
        self.body = self._decoded() if self.is_decoded else self._sent

    def _decoded(self) -> bytes:
        try:
            return self._sent.decode(self._encoding).encode()
        except UnicodeDecodeError as error:
            self.fault = f"body: no {self._encoding} at byte {error.start}: send JSON in UTF-8"
        try:
            return self._within_unicode().decode(self._encoding, self._errors).encode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            # Its last unit is not whole: no element holds it alone.
            raise PushRefusedError(400, self.fault) from error

    def _within_unicode(self) -> bytes:
        """Return what was sent; a unit of UTF-32 that is beyond Unicode becomes half of a surrogate pair."""
        if self._encoding not in _UTF32 or len(self._sent) % _UTF32[self._encoding].itemsize:
            return self._sent
        units = np.frombuffer(self._sent, _UTF32[self._encoding]).copy()
        units[units > sys.maxunicode] = _HALF
        return units.tobytes()

    @property
    def _errors(self) -> str:
        return "surrogatepass" if unit_of(self._encoding) > 1 else "surrogateescape"

    def as_sent(self, rejected: Sequence[RejectedRecord]) -> Sequence[RejectedRecord]:
        """Return rejected parts of the text, in its order, with the bytes that were sent."""
        if not self.is_decoded:
            return rejected
        found: list[RejectedRecord] = []
        at, byte = 0, 0
        for one in rejected:
            place = self.body.find(one.data, at)
            if place < 0:
                found.append(one)
                continue
            byte += len(self._encoded(self.body[at:place]))
            begin, at = byte, place + len(one.data)
            byte += len(self._encoded(one.data))
            why = _NOT_UTF8.sub(f"no {self._encoding}", one.why)
            found.append(replace(one, data=self._sent[begin:byte], why=why))
        return found

    def _encoded(self, part: bytes) -> bytes:
        """Return a part in its own encoding: a character that has two forms there has them of one length."""
        return part.decode("utf-8", "surrogatepass").encode(self._encoding, self._errors)


def json_text(kind: str, charset: str | None, body: bytes) -> JsonText:
    """Return JSON in UTF-8. What declares or has none is not checked.

    Raises:
        PushRefusedError: 415 for an unknown charset, 400 for bytes that are none of it in no place, and for UTF-16 or
            UTF-32 that nothing names.
    """
    if charset in UTF8 and _UNMARKED.match(body):
        raise PushRefusedError(
            400,
            "body: it is UTF-16 or UTF-32 without a mark: name it, as Content-Type: application/json; "
            "charset=utf-16le, or send JSON in UTF-8",
        )
    return JsonText(body, *encoding_of(kind, charset, body))


def json_in_utf8(kind: str, charset: str | None, body: bytes) -> bytes:
    """Return JSON of one value as UTF-8 without a mark. What declares or has none is not checked.

    Raises:
        PushRefusedError: 415 for an unknown charset, 400 for bytes that are none of it.
    """
    text = json_text(kind, charset, body)
    if text.fault is not None:
        raise PushRefusedError(400, text.fault)
    return text.body


def looked_at(charset: str | None, body: bytes) -> bytes:
    """Return a body as text whose form can be looked at: in UTF-8 without a mark, where it can be decoded."""
    try:
        return json_text("", charset, body).body
    except PushRefusedError:
        return body


def in_utf8(content_type: str | None) -> str | None:
    """Return a Content-Type of text that was decoded: it names the charset in which the text is stored."""
    if content_type is None or media_type(content_type)[1] in {None, "utf-8", "utf8"}:
        return content_type
    return _CHARSET.sub(r"\g<1>utf-8", content_type)
