r"""Cut lines of UTF-16 and UTF-32, whose newline is a unit of several bytes, into records by vector code.

Owns what differs from text whose newline is one byte (``lines``): a newline counts only at a unit's beginning, and the
text is decoded before a ``\r`` is removed. Bytes must begin with a line, and so with a unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from receiver_runtime.receivers.framing import LETTER_BYTES
from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.sources.fields.text_encoding import unit_of

if TYPE_CHECKING:
    import pyarrow as pa

    from receiver_runtime.receivers.lines import Positions

_NEWLINE = ord("\n")


class WideLineFraming(LineFraming):
    """Cut lines; see ``LineFraming``.

    Args:
        encoding: UTF-16 or UTF-32, with its byte order.
        max_record_bytes: a longer line, in the bytes of its encoding, becomes a dead letter.
        letter_bytes: how many bytes of a dead letter are kept.
    """

    def __init__(self, *, encoding: str, max_record_bytes: int, letter_bytes: int = LETTER_BYTES) -> None:
        super().__init__(
            delimiter="\n".encode(encoding),
            encoding=encoding,
            max_record_bytes=max_record_bytes,
            letter_bytes=letter_bytes,
        )
        self.units = np.dtype(f"{'>' if encoding.endswith('be') else '<'}u{unit_of(encoding)}")
        self._utf8 = LineFraming()

    def ends(self, data: bytes | memoryview) -> Positions:
        """Return where the newlines begin."""
        size = self.units.itemsize
        units = np.frombuffer(data, dtype=self.units, count=len(data) // size)
        return np.flatnonzero(units == _NEWLINE) * size

    def last_end(self, data: bytes) -> int:
        """See ``LineFraming``."""
        ends = self.ends(data)
        return int(ends[-1]) + self.units.itemsize if ends.size else 0

    def first_end(self, data: bytes) -> int:
        """See ``LineFraming``."""
        ends = self.ends(data)
        return int(ends[0]) if ends.size else -1

    def _at_once(self, data: bytes) -> tuple[pa.Array, Positions] | None:
        del data
        return None

    def _is_ascii(self, data: bytes) -> bool:
        del data
        return False

    def _array(self, lines: bytes, ends: Positions) -> pa.Array:
        del ends
        text = lines.decode(self._encoding).replace("\r\n", "\n").encode()
        return self._utf8._array(text, self._utf8.ends(text))  # noqa: SLF001  of the same class
