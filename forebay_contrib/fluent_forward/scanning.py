"""Find where values of MessagePack end, in bytes that come in pieces.

Owns the walk over the bytes: it makes no objects, and goes on where it stopped. A length in the bytes is only ever used
to refuse them, never to make room. It must never decode a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

NIL, NEVER_USED = 0xC0, 0xC1
FIX_MAP, FIX_ARRAY, FIX_TEXT = 0x80, 0x90, 0xA0
ARRAY_16, ARRAY_32, MAP_16, MAP_32 = 0xDC, 0xDD, 0xDE, 0xDF
_STR_8 = 0xD9
TEXTS, BYTES = frozenset({_STR_8, 0xDA, 0xDB}), frozenset({0xC4, 0xC5, 0xC6})
EXTENSIONS, FLOATS = frozenset({0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)}), frozenset({0xCA, 0xCB})
# The first bits of a float that is infinite, not a number, or very large.
_EXPONENT = 0x7F
_FIX_CONTAINER_BITS, _FIX_TEXT_BITS = 15, 31


def _sizes() -> Sequence[int]:
    """Return for each first byte how many bytes the value has at least: with its head, without what the head counts."""
    sizes = [1] * 256
    for octet in range(0xA0, 0xC0):
        sizes[octet] = 1 + octet - 0xA0
    for first, numbers in {
        0xC4: (2, 3, 5),
        0xC7: (3, 4, 6),
        0xCA: (5, 9),
        0xCC: (2, 3, 5, 9),
        0xD0: (2, 3, 5, 9),
        0xD4: (3, 4, 6, 10, 18),
        0xD9: (2, 3, 5),
        0xDC: (3, 5, 3, 5),
    }.items():
        sizes[first : first + len(numbers)] = numbers
    return sizes


def _needs() -> Sequence[int]:
    """Return for each first byte how many values more are needed after it, less itself."""
    needs = [-1] * 256
    for count in range(16):
        needs[0x80 + count], needs[FIX_ARRAY + count] = 2 * count - 1, count - 1
    return needs


_SIZES, _NEEDS = _sizes(), _needs()
# How many bytes of length follow a first byte, and how many values each unit of it is; 0: the length counts bytes.
_LENGTHS: dict[int, tuple[int, int]] = {
    **{0xC4 + n: (2**n, 0) for n in range(3)},
    **{0xC7 + n: (2**n, 0) for n in range(3)},
    **{0xD9 + n: (2**n, 0) for n in range(3)},
    **{0xDC + n: (2 ** (n + 1), 1) for n in range(2)},
    **{0xDE + n: (2 ** (n + 1), 2) for n in range(2)},
}
# As the sizes; 0: the first byte alone does not say it, or is to be noted.
_STEPS = [
    0 if octet in _LENGTHS or octet in EXTENSIONS or octet in FLOATS or octet == NEVER_USED else size
    for octet, size in enumerate(_SIZES)
]


class NotMessagePackError(ValueError):
    """Signal that bytes are no MessagePack. The message says where."""


class TooLongError(ValueError):
    """Signal that a value says that it is longer than allowed."""


class ValueScanner:
    """Find the end of one value after the other.

    Args:
        most: a value ends at this place, or before it.
    """

    __slots__ = ("_most", "at", "is_odd", "need", "values")

    def __init__(self, most: int, at: int = 0) -> None:
        self._most = most
        #: Where the walk is; once ``scan`` has returned True, where the value ended.
        self.at = at
        #: How many values more are needed until the one that was begun is whole; 0: none was begun.
        self.need = 0
        #: How many values the value consists of, with itself.
        self.values = 0
        #: Whether the value has something that JSON has not, or may not have: bytes, extensions, odd numbers.
        self.is_odd = False

    def begin(self, values: int = 1) -> None:
        """Begin to scan this many values as one."""
        self.need = values
        self.values = 0
        self.is_odd = False

    def scan(self, data: bytes | bytearray) -> bool:
        """Go on in the bytes so far; return whether the value is whole.

        Raises:
            NotMessagePackError: a byte begins no value.
            TooLongError: the value can't end in time.
        """
        at, need, values, size = self.at, self.need, self.values, len(data)
        steps, needs = _STEPS, _NEEDS
        while need and at < size:
            octet = data[at]
            if step := steps[octet]:
                at += step
                need += needs[octet]
            elif octet == _STR_8 and at + 1 < size:
                at += 2 + data[at + 1]
                need -= 1
            elif (found := head(data, at)) is None:
                break
            else:
                self.is_odd = self.is_odd or _is_odd(data, at)
                need += found.values - 1
                at = found.end
            values += 1
        if at + need > self._most:
            raise TooLongError(f"more than {self._most} bytes")
        self.at, self.need, self.values = at, need, values
        return not need and at <= size


class Head(NamedTuple):
    """Say what the first bytes of a value tell: where its content begins and ends, and how many values it holds.

    The content of an array or a map ends where it begins: its values follow.
    """

    begin: int
    end: int
    values: int = 0


def head(data: bytes | bytearray, at: int) -> Head | None:
    """Return the head of the value that begins here; None: too few bytes have come.

    Raises NotMessagePackError: no value begins here.
    """
    octet = data[at]
    if octet == NEVER_USED:
        raise NotMessagePackError(f"byte {at} is 0xc1, which begins no value")
    size = _SIZES[octet]
    if octet in FLOATS:
        return Head(at + 1, at + size) if at + 1 < len(data) else None
    if octet not in _LENGTHS:
        begin = at + (2 if octet in EXTENSIONS else 1)
        return Head(begin, at + size, _NEEDS[octet] + 1)
    count, values = _LENGTHS[octet]
    end = at + 1 + count
    if end > len(data):
        return None
    number = int.from_bytes(data[at + 1 : end], "big")
    begin = at + size
    return Head(begin, begin, number * values) if values else Head(begin, begin + number)


def _is_odd(data: bytes | bytearray, at: int) -> bool:
    octet = data[at]
    if octet in FLOATS:
        return data[at + 1] & _EXPONENT == _EXPONENT
    return octet in BYTES or octet in EXTENSIONS


def array_of(data: bytes | bytearray, at: int) -> Head | None:
    """Return the head of the array that begins here; None: too few bytes have come.

    Raises NotMessagePackError: no array begins here.
    """
    if not is_array(data[at]):
        raise NotMessagePackError(f"byte {at} begins no array")
    return head(data, at)


def is_array(octet: int) -> bool:
    """Return whether an array begins with this byte."""
    return octet & ~_FIX_CONTAINER_BITS == FIX_ARRAY or octet in {ARRAY_16, ARRAY_32}


def is_map(octet: int) -> bool:
    """Return whether a map begins with this byte."""
    return octet & ~_FIX_CONTAINER_BITS == FIX_MAP or octet in {MAP_16, MAP_32}


def is_text(octet: int) -> bool:
    """Return whether text begins with this byte, or bytes, as some senders write text."""
    return octet & ~_FIX_TEXT_BITS == FIX_TEXT or octet in TEXTS or octet in BYTES
