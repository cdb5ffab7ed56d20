"""Finds where the elements and members of a JSON text begin and end, whatever is within them.

A parser that fails on one element does not say where that ends. This one knows only strings and brackets, so an element
that is no UTF-8, has a NaN, or is nested without end is found as any other, and only it is rejected. Never checks an
element: the caller parses each of them. Steps are by token and without recursion.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from receiver_runtime.receivers.http.requests.pushed import PushRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits

# A string, which may have no end, or a character of structure.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("|\\?\Z)|[\[\]{},:]', re.DOTALL)
# Checks values and builds none. It takes no NaN, and no half of a surrogate pair.
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_BLANKS = b" \t\r\n"
_OPENING, _CLOSING = frozenset(b"[{"), frozenset(b"]}")
_WITHIN, _COLON = frozenset(b",:"), ord(":")
_CHECK_EVERY = 4096  # how many tokens to read before the time is checked again


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
        limits.check_elements(body)
        return [span.value for span in spans_of(body, limits.check)], False


def spans_of(data: bytes, check: Callable[[], None]) -> Iterator[Span]:
    """Yield the elements of the array, or the members of the object, that `data` is. `check` is called now and then.

    Raises:
        UnknownSpansError: it is neither, or its brackets or strings do not match.
    """
    data = data.strip(_BLANKS)
    if data[:1] not in (b"[", b"{") or data[-1:] != (b"]" if data[:1] == b"[" else b"}"):
        raise UnknownSpansError(UnknownSpansError.__doc__)
    is_object = data[:1] == b"{"
    begin, colon, end = 1, 0, 0
    for at, depth in _marks(data, check):
        if data[at] == _COLON:
            colon = colon or at
            continue
        end = at
        if depth or begin > 1 or data[begin:end].strip(_BLANKS):
            yield _span(data, begin, colon, end, is_object=is_object)
        begin, colon = end + 1, 0
    if end + 1 != len(data):
        raise UnknownSpansError(UnknownSpansError.__doc__)


def _marks(data: bytes, check: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """Yield where the colons and commas of the outermost value are, and its closing bracket, with the depth there."""
    depth = 0
    for number, token in enumerate(_TOKEN.finditer(data)):
        if not number % _CHECK_EVERY:
            check()
        mark = data[token.start()]
        depth += (mark in _OPENING) - (mark in _CLOSING)
        if depth == 0 or (depth == 1 and mark in _WITHIN):
            yield token.start(), depth
        if depth == 0:
            return


def _span(data: bytes, begin: int, colon: int, end: int, *, is_object: bool) -> Span:
    value = data[colon + 1 if is_object else begin : end].strip(_BLANKS)
    # Between two commas there is nothing that could be rejected alone.
    if not value or bool(colon) is not is_object:
        raise UnknownSpansError(UnknownSpansError.__doc__)
    return Span(data[begin:colon].strip(_BLANKS) if is_object else b"", value)
