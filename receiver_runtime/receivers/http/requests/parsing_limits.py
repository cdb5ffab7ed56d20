"""Limit the parsing of one body: how many values it may have, and until when it may be parsed.

Values are counted by vector code before a parser makes an object of any of them: a few kilobytes, decompressed, may
hold millions. A parser checks the time between records, so that a body whose sender has left, or that takes too long,
ends soon. This module never parses, and never answers a request.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from receiver_runtime.receivers.http.requests.pushed import PushRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

_NO_LIMIT = 2**62
# Each value of a JSON text, except the first, follows one of these or begins with one.
_JSON_MARKS = b",:[{"
_QUOTE = ord('"')
# The tags of the messages within an export request of logs: each of its messages follows one of these bytes.
_PROTOBUF_MARKS = b"\x0a\x12\x2a\x32"
# Those within one of another signal, where they are letters of most texts too: so only tiny messages are counted, of
# fewer bytes than this. Of larger ones a body has no more than it has bytes by that.
_MORE_PROTOBUF_MARKS = b"\x3a\x42\x4a\x52\x5a\x62\x6a"
_TINY = 8


class ParsingStoppedError(Exception):
    """Parsing of the body stopped: its time is over, or its sender has left."""


class ParsingLimits:
    """Limit the parsing of one body. ``stop`` is safe from any thread; the other methods belong to the parser's.

    Args:
        most_values: the most values, or lines, that objects are made of.
        seconds: from now on, until parsing ends with an error.
        on_grown: called with each number of bytes that the body has grown by when decompressed; what it raises ends
            the parsing.
    """

    def __init__(
        self,
        *,
        most_values: int = _NO_LIMIT,
        seconds: float = math.inf,
        on_grown: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_values = most_values
        self._until = clock() + seconds
        self._on_grown = on_grown
        self._clock = clock
        # Written once, by ``stop``: an event would cost more than to parse a small body.
        self._stopped = False

    def stop(self) -> None:
        """End the parsing at its next check."""
        self._stopped = True

    def check(self) -> None:
        """Raise ParsingStoppedError if the parsing is to end."""
        if self._stopped or self._clock() > self._until:
            raise ParsingStoppedError(ParsingStoppedError.__doc__)

    def grown(self, nbytes: int) -> None:
        """Note that the body has ``nbytes`` more than were sent. Raises as ``check``, and what ``on_grown`` raises."""
        self.check()
        if self._on_grown is not None:
            self._on_grown(nbytes)

    def check_json(self, body: bytes) -> None:
        """Count the values and names of a JSON text, and check the time.

        Raises:
            PushRefusedError: 413, there are too many.
        """
        self.check()
        if len(body) <= self._most_values:
            # There can't be too many.
            return
        octets = np.frombuffer(body, np.uint8)
        found = _count(octets, _JSON_MARKS)
        if found > self._most_values and b'"' in body:
            # Some may be within strings, as in a record that holds a large text.
            octets, outside = outside_strings(body)
            found = _count(octets[outside], _JSON_MARKS)
        self._refuse_above(found, "values in JSON, names included")

    def check_lines(self, body: bytes, delimiter: bytes = b"\n", what: str = "lines") -> None:
        """Count the lines of a text, or what else a delimiter cuts it into, and check the time.

        Raises:
            PushRefusedError: 413, there are too many.
        """
        self.check()
        self._refuse_above(body.count(delimiter), what)

    def check_elements(self, count: int) -> None:
        """Check how many elements a JSON array has.

        Raises:
            PushRefusedError: 413, there are too many.
        """
        self._refuse_above(count, "elements of a JSON array")

    def check_protobuf(
        self, body: bytes, marks: bytes = _PROTOBUF_MARKS, tiny_marks: bytes = _MORE_PROTOBUF_MARKS
    ) -> None:
        """Count what may be a message in protobuf, of an export request if no tags are given, and check the time.

        Args:
            body: the request's.
            marks: the tags of messages. Each of these bytes is counted.
            tiny_marks: the tags that are counted only where a tiny message follows.

        Raises:
            PushRefusedError: 413, there are too many.
        """
        self.check()
        if len(body) > self._most_values:
            octets = np.frombuffer(body, np.uint8)
            tiny = octets[:-1][octets[1:] < _TINY]
            # A tag may go on with bytes that say nothing: protobuf takes such tags, and no sender in use writes them.
            longer = octets[:-1][octets[1:] & 0x7F == 0] ^ 0x80
            found = _count(octets, marks) + _count(longer, marks) + _count(tiny, tiny_marks)
            self._refuse_above(found, "messages in protobuf")

    def _refuse_above(self, found: int, what: str) -> None:
        if found > self._most_values:
            raise PushRefusedError(
                413, f"body: {found} {what}, max_body_values is {self._most_values}: send fewer at once"
            )


#: For callers that have checked the body otherwise.
UNLIMITED = ParsingLimits()


def outside_strings(body: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return the bytes of a JSON text with blanks for what is escaped, and which of them are outside its strings."""
    # A backslash that is escaped escapes nothing. After that, each backslash before a quote escapes it.
    octets = np.frombuffer(body.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
    return octets, ~np.logical_xor.accumulate(octets == _QUOTE)


def _count(octets: npt.NDArray[np.uint8], marks: bytes) -> int:
    return sum(int(np.count_nonzero(octets == mark)) for mark in marks)
