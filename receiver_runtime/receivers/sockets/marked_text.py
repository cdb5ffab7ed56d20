"""Read a stream of UTF-8 also where its byte-order mark says that it is UTF-16 or UTF-32.

Programs of Windows write so. Only the mark decides: text is never guessed. What can't be decoded becomes bytes that are
no UTF-8, so that its line is a dead letter as any other such line. It must never cut records: ``lines`` does.
"""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from typing import TYPE_CHECKING

import numpy as np

from receiver_runtime.receivers.framing import Taken
from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.sources.fields.text_encoding import MARK_BYTES, by_mark, unit_of

if TYPE_CHECKING:
    from receiver_runtime.receivers.lines import LineSplitter

_MARKS = (BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_LE, BOM_UTF32_BE)
_LAST_POINT = 0x10FFFF
_HALF = 0xD800  # half of a surrogate pair, which is no character
_FIRST_HALVES = range(0xD800, 0xDC00)
_NO_UTF8 = b"\xff"


class MarkedTextFraming(LineFraming):
    """Cut lines of UTF-8; see ``LineFraming``."""

    def open(self) -> MarkedTextSplitter:  # type: ignore[override]  # it does what a splitter does
        """See ``LineFraming``."""
        return MarkedTextSplitter(super().open())


class MarkedTextSplitter:
    """Split one connection's stream; see ``framing.Splitter``."""

    def __init__(self, splitter: LineSplitter) -> None:
        self._splitter = splitter
        #: The first bytes while they may be the beginning of a mark; None: the encoding is known.
        self._head: bytearray | None = bytearray()
        #: UTF-16 or UTF-32 with its byte order; "": the stream is UTF-8.
        self._wide = ""
        #: The bytes of a character whose end has not arrived.
        self._held = b""

    def take(self, buffer: bytearray, count: int) -> Taken:
        """See ``framing.Splitter``."""
        if self._head is None and not self._wide:
            return self._splitter.take(buffer, count)
        data = bytes(memoryview(buffer)[:count])
        if self._head is not None:
            self._head += data
            data = bytes(self._head)
            if len(data) < MARK_BYTES and any(mark.startswith(data) or data == mark for mark in _MARKS):
                return Taken()
            data = self._begin(data)
        return self._pass_on(self._in_utf8(data) if self._wide else data)

    def finish(self, *, clean: bool) -> Taken:
        """See ``framing.Splitter``."""
        taken = Taken()
        if self._head:
            data = self._begin(bytes(self._head))
            taken = self._pass_on(self._in_utf8(data) if self._wide else data)
        if self._held:
            taken = self._pass_on(_NO_UTF8)
        # Neither a part of a mark nor half a character has a newline.
        assert taken.piece is None
        assert not taken.after
        found = self._splitter.finish(clean=clean)
        found.before[:0] = taken.before
        self._head, self._wide, self._held = bytearray(), "", b""
        return found

    def _begin(self, data: bytes) -> bytes:
        """Note the encoding that the first bytes name, and return them without a mark of wide text."""
        self._head = None
        encoding, mark = by_mark(data[:MARK_BYTES], "utf-8")
        if unit_of(encoding) == 1:
            return data
        self._wide = encoding
        return data[mark:]

    def _pass_on(self, data: bytes) -> Taken:
        return self._splitter.take(bytearray(data), len(data)) if data else Taken()

    def _in_utf8(self, data: bytes) -> bytes:
        size = unit_of(self._wide)
        data = self._held + data
        units = np.frombuffer(
            data, dtype=f"{'>' if self._wide.endswith('be') else '<'}u{size}", count=len(data) // size
        ).copy()
        if size == 2 and units.size and int(units[-1]) in _FIRST_HALVES:  # noqa: PLR2004  bytes of UTF-16
            units = units[:-1]
        self._held = data[units.size * size :]
        units[units > _LAST_POINT] = _HALF
        # A half becomes bytes that are no UTF-8.
        return units.tobytes().decode(self._wide, "surrogatepass").encode("utf-8", "surrogatepass")
