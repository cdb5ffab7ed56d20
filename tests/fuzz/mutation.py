"""Mutate valid messages: cut, repeat, flip and insert, so that a parser gets far before it meets what is wrong.

Owns the edits and what they insert. It knows no parser.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBERS = (
    0,
    1,
    2,
    7,
    127,
    128,
    255,
    256,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_DIGITS = re.compile(rb"\d+")
#: What any parser may meet: line ends, blanks, bytes that are no UTF-8, and the edges of numbers.
WORDS: Sequence[bytes] = (
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\r",
        b" ",
        b"\t",
        b'"',
        b"\\",
        b":",
        b";",
        b",",
        b"=",
        b"-",
        b"%",
        b"/",
        b"\x1f",
        b"\x7f",
    ),
    *(
        b"\xff",
        b"\xc3",
        b"\xa9",
        b"caf\xc3\xa9",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xf4\x90\x80\x80",
        b"\xe2\x80\xa8",
    ),
    *("\u0663".encode(), "\U0001f600".encode(), b"-1", b"1e400", b"9" * 5000, b"[" * 3000),
    *(str(number).encode() for number in _NUMBERS),
    *(struct.pack("<I", number) for number in _NUMBERS if number < 2**32),
    *(struct.pack(">I", number) for number in _NUMBERS if number < 2**32),
    *(struct.pack("<Q", number) for number in _NUMBERS),
)


class _Kind(Enum):
    FLIP = auto()
    SET = auto()
    CUT = auto()
    END = auto()
    REPEAT = auto()
    INSERT = auto()
    REPLACE = auto()
    SPLICE = auto()
    NUMBER = auto()


@dataclass(frozen=True, slots=True)
class _Edit:
    """One edit. Its numbers are taken modulo what there is, so that each edit fits any bytes."""

    kind: _Kind
    at: int
    size: int
    word: bytes


def mutated(valid: Sequence[bytes], words: Sequence[bytes] = (), *, most_edits: int = 6) -> st.SearchStrategy[bytes]:
    """Return a strategy of valid messages with edits, sometimes none.

    Args:
        valid: messages that the parser accepts.
        words: what means something to the parser, inserted as often as all of ``WORDS`` together.
        most_edits: of one message.
    """
    inserted = st.sampled_from(WORDS) | st.binary(max_size=8)
    if words:
        inserted = st.sampled_from(words) | inserted
    edits = st.builds(_Edit, st.sampled_from(_Kind), st.integers(0, 2**16), st.integers(0, 2**8), inserted)
    message = st.sampled_from(valid)
    return st.builds(_edited, message, message, st.lists(edits, max_size=most_edits))


def _edited(data: bytes, other: bytes, edits: Sequence[_Edit]) -> bytes:
    for edit in edits:
        data = _apply(data, other, edit)
    return data


def _apply(data: bytes, other: bytes, edit: _Edit) -> bytes:
    at = edit.at % (len(data) + 1)
    end = min(len(data), at + edit.size)
    before, within, after = data[:at], data[at:end], data[end:]
    octet = data[at] if at < len(data) else 0
    edited = {
        _Kind.FLIP: before + bytes([octet ^ 1 << edit.size % 8]) + data[at + 1 :],
        _Kind.SET: before + bytes([edit.size % 256]) + data[at + 1 :],
        _Kind.CUT: before + after,
        _Kind.END: before,
        _Kind.REPEAT: before + within * (2 + edit.at % 7) + after,
        _Kind.INSERT: before + edit.word + data[at:],
        _Kind.REPLACE: before + edit.word + data[at + len(edit.word) :],
        _Kind.SPLICE: before + other[edit.size % (len(other) + 1) :],
    }
    return edited[edit.kind] if edit.kind in edited else _with_number(data, at, _NUMBERS[edit.size % len(_NUMBERS)])


def _with_number(data: bytes, at: int, number: int) -> bytes:
    """Put another number in the place of the next one that is written in digits."""
    match = _DIGITS.search(data, at)
    return data if match is None else data[: match.start()] + b"%d" % number + data[match.end() :]
