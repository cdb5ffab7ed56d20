"""Make numbers and truths of texts of at most eight bytes, all rows at once: each text is one word of the processor.

It decides nothing: where one of the texts is longer, or is not a plain number or truth of JSON, all are left to Arrow's
casts. Of those that it takes, these make the same values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

    Octets = npt.NDArray[np.uint8]
    Places = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint64]

_MINUS, _ZERO = b"-0"
_WORD = 8
_ONE, _TEN = np.uint64(1), np.uint64(10)
# Numbers of bits.
_BYTE, _HALF, _WIDE, _TOP_BIT, _TOP_BYTE = (np.uint64(number) for number in (8, 16, 32, 7, 56))
_TRUE, _FALSE = (np.uint64(int.from_bytes(text.rjust(_WORD, b"\0"), "little")) for text in (b"true", b"false"))


def _in_each_byte(octet: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([octet]) * _WORD, "little"))


_ZEROS, _LOW, _TOP = _in_each_byte(_ZERO), _in_each_byte(0x7F), _in_each_byte(0x80)
# What a dot is where zero is 0; and what is added to a byte to set its top bit if it is more than 9.
_DOTS, _OVER_NINE = _in_each_byte(ord(".") ^ _ZERO), _in_each_byte(0x80 - 10)
# The last bytes of a word, by how many.
_LAST = np.array([2**64 - 2 ** (64 - 8 * count) for count in range(_WORD + 1)], dtype=np.uint64)
_PAIRS = np.uint64(0x000000FF000000FF)
_FIRST_PAIRS, _SECOND_PAIRS = np.uint64(100 + (10**6 << 32)), np.uint64(1 + (10**4 << 32))
# Multiplied with 1 in the byte of a dot, its top byte is the number of bytes behind the dot.
_BEHIND = np.uint64(0x0706050403020100)
_POWERS = np.array([10.0**power for power in range(_WORD)])


class _OtherError(Exception):
    """Nothing to do: one of the texts is for Arrow's casts."""


def short_values(octets: Octets, starts: Places, stops: Places, kind: pa.DataType) -> pa.Array | None:
    """Return values without quotes, given by where each begins and ends, in order; None: it takes not all of them.

    The type is one of integers, floating-point numbers or truths.
    """
    if not (pa.types.is_signed_integer(kind) or pa.types.is_float64(kind) or pa.types.is_boolean(kind)):
        # Other floating-point numbers would be rounded twice, and -0 is no number without a sign.
        return None
    try:
        lengths = stops - starts
        _refuse(stops[0] < _WORD or lengths.min() < 1 or lengths.max() > _WORD)
        words = np.ndarray((len(octets) - _WORD + 1,), "<u8", buffer=octets, strides=(1,))[stops - _WORD]
        if pa.types.is_boolean(kind):
            return pa.array(_truths(words & _LAST[lengths]))
        values = pa.array(_numbers(octets, starts, lengths, words, with_dots=pa.types.is_float64(kind)))
        return values if values.type == kind else values.cast(kind)
    except (_OtherError, pa.ArrowInvalid):
        return None


def _refuse(is_other: bool | np.bool_) -> None:
    if is_other:
        raise _OtherError


def _truths(words: Words) -> npt.NDArray[np.bool_]:
    are_true: npt.NDArray[np.bool_] = words == _TRUE
    _refuse(not (are_true | (words == _FALSE)).all())
    return are_true


def _numbers(octets: Octets, starts: Places, lengths: Places, words: Words, *, with_dots: bool) -> npt.NDArray[Any]:
    """Return the numbers of texts, given by where they begin and by the words that end where they do."""
    firsts = octets[starts]
    are_negative = firsts == _MINUS
    if has_negative := bool(are_negative.any()):
        lengths = lengths - are_negative
        _refuse(not lengths.all())
        firsts = octets[starts + are_negative]
    digits = (words ^ _ZEROS) & _LAST[lengths]
    behind = None
    if with_dots:
        digits, behind, lengths = _without_dots(digits, lengths)
    _refuse((((digits + _OVER_NINE) | digits) & _TOP).any())
    _refuse(((firsts == _ZERO) & (lengths > 1)).any())
    numbers: npt.NDArray[Any] = _of_digits(digits)
    if behind is not None:
        # Both are exact, so the quotient is the number that is nearest to the text.
        numbers = numbers / _POWERS[behind]
    if has_negative:
        np.negative(numbers, out=numbers, where=are_negative)
    return numbers


def _without_dots(digits: Words, lengths: Places) -> tuple[Words, Words, Places]:
    """Return digits without a dot between them, how many are behind it, and how many before it."""
    others = digits ^ _DOTS
    dots = (~(((others & _LOW) + _LOW) | others | _LOW)) >> _TOP_BIT
    have = dots != 0
    # Several of them, or one at the end.
    _refuse((dots & (dots - _ONE)).any() or (dots >> _TOP_BYTE).any())
    behind = (dots * _BEHIND) >> _TOP_BYTE
    before = lengths - behind.astype(np.int64) - have
    _refuse(before.min() < 1)
    moved = (digits & ~((dots << _BYTE) - _ONE)) | ((digits & (dots - _ONE)) << _BYTE)
    return (moved if have.all() else np.where(have, moved, digits)), behind, before


def _of_digits(digits: Words) -> npt.NDArray[np.int64]:
    """Return the number that eight digits are, the first one in the lowest byte."""
    pairs = digits * _TEN + (digits >> _BYTE)
    sums = (pairs & _PAIRS) * _FIRST_PAIRS + ((pairs >> _HALF) & _PAIRS) * _SECOND_PAIRS
    return (sums >> _WIDE).view(np.int64)
