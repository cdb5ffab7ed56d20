"""Finds where the elements and members of a JSON text begin and end, whatever is within them.

A parser that fails on one element does not say where that ends. This one knows only strings and brackets, so an element
that is no UTF-8, has a NaN, or is nested without end is found as any other, and only it is rejected. Never checks an
element: the caller parses each of them. Vector code reads the text; Python takes a step for each element, and none for
what is within it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from receiver_runtime.receivers.http.requests.parsing_limits import outside_strings
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits

# Checks values and builds none. It takes no NaN, and no half of a surrogate pair.
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_BLANKS = b" \t\r\n"
_COMMA, _COLON = b",:"
# How much deeper a byte outside strings leads.
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_CHECK_EVERY = 4096  # how many marks to read before the time is checked again
_UNKNOWN = "brackets, strings or commas do not show where an element ends"


class UnknownSpansError(ValueError):
    """JSON has brackets, strings or commas that do not show where an element ends."""


class Span(NamedTuple):
    """Hold one element of an array, or one member of an object with its name, as it was sent."""

    name: bytes
    value: bytes


def array_elements(body: bytes, limits: ParsingLimits) -> tuple[list[bytes], bool]:
    """Return the elements of an array as they were sent, and whether each is JSON for sure.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 413, there are too many of them.
        UnknownSpansError: it is not an array, or does not show where an element ends.
    """
    try:
        limits.check_json(body)
        # The parser checks no UTF-8 in what it only skips.
        if not body.isascii():
            body.decode()
        return list(map(bytes, _ELEMENTS.decode(body))), True
    except (PushRefusedError, UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        limits.check()
        data, marks = _outermost(body)
        limits.check_elements(1 + int(np.count_nonzero(np.frombuffer(data, np.uint8)[marks] == _COMMA)))
        return [span.value for span in _spans(data, marks, limits.check)], False


def spans_of(data: bytes, check: Callable[[], None]) -> Iterator[Span]:
    """Yield the elements of the array, or the members of the object, that `data` is. `check` is called now and then.

    Raises:
        UnknownSpansError: it is neither, or its brackets or strings do not match.
    """
    yield from _spans(*_outermost(data), check)


def _outermost(data: bytes) -> tuple[bytes, npt.NDArray[np.intp]]:
    """Return an array or object without blanks around it, and where its commas, colons and closing bracket are.

    A quote behind a backslash is none, also outside strings, where JSON has no backslash.
    """
    data = data.strip(_BLANKS)
    if data[:1] not in (b"[", b"{") or data[-1:] != (b"]" if data[:1] == b"[" else b"}"):
        raise UnknownSpansError(_UNKNOWN)
    octets, outside = outside_strings(data)
    depth = np.cumsum(_STEPS[octets] * outside, dtype=np.int32)
    if depth[-1] != 0 or not depth[:-1].all():
        raise UnknownSpansError(_UNKNOWN)
    marks = np.flatnonzero((depth == 1) & outside & ((octets == _COMMA) | (octets == _COLON)))
    return data, np.append(marks, len(data) - 1)


def _spans(data: bytes, marks: npt.NDArray[np.intp], check: Callable[[], None]) -> Iterator[Span]:
    is_object = data[:1] == b"{"
    last = len(data) - 1
    begin, colon = 1, 0
    for first in range(0, marks.size, _CHECK_EVERY):
        check()
        for at in marks[first : first + _CHECK_EVERY].tolist():
            if data[at] == _COLON:
                colon = colon or at
                continue
            if at < last or begin > 1 or data[begin:at].strip(_BLANKS):
                yield _span(data, begin, colon, at, is_object=is_object)
            begin, colon = at + 1, 0


def _span(data: bytes, begin: int, colon: int, end: int, *, is_object: bool) -> Span:
    value = data[colon + 1 if is_object else begin : end].strip(_BLANKS)
    # Between two commas there is nothing that could be rejected alone.
    if not value or bool(colon) is not is_object:
        raise UnknownSpansError(_UNKNOWN)
    return Span(data[begin:colon].strip(_BLANKS) if is_object else b"", value)
