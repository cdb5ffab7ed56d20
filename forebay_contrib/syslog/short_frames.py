"""Walk runs of very short octet-counted frames, which a regular expression for each would make slow.

A megabyte may have 350,000 frames. Vector code finds for each byte where a frame that began there would end; the walk
is then one look-up per frame. Knows neither connections nor limits of a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from forebay_contrib.syslog.parsing import Places

# Bytes of one table. Several tables of this size take as long as one, and less memory.
_TABLE_BYTES = 2**16
_ZERO, _ONE, _NINE, _SPACE, _NEWLINE = b"019 \n"
_LONGEST_PREFIX = 3  # bytes: two digits and the space


def walk_short_frames(data: bytes, place: int) -> tuple[Places, Places, int]:
    """Return the starts and ends of whole frames with counts below 100, and the place after the last one.

    A frame may be followed by one newline. The walk ends at the first place where no such frame begins, or where one is
    not whole.

    Args:
        data: the stream.
        place: where a counted frame may begin, and the frame before it had a count.
    """
    starts: list[Places] = []
    ends: list[Places] = []
    while True:
        found, end, then = _walk_table(data, place)
        if not found.size:
            break
        starts.append(found)
        ends.append(end)
        place = then
    if not starts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), place
    return np.concatenate(starts), np.concatenate(ends), place


def _walk_table(data: bytes, place: int) -> tuple[Places, Places, int]:
    size = min(_TABLE_BYTES, len(data) - place)
    octets = np.zeros(size + _LONGEST_PREFIX, dtype=np.uint8)
    octets[:size] = np.frombuffer(data, dtype=np.uint8, count=size, offset=place)
    first, second, third = octets[:size], octets[1 : size + 1], octets[2 : size + 2]
    leads = (first >= _ONE) & (first <= _NINE)
    has_one = leads & (second == _SPACE)
    has_two = leads & (second >= _ZERO) & (second <= _NINE) & (third == _SPACE)
    begins = np.arange(size, dtype=np.int64) + np.where(has_two, 3, 2)
    digit, next_digit = first.astype(np.int64) - _ZERO, second.astype(np.int64) - _ZERO
    finish = begins + np.where(has_two, 10 * digit + next_digit, digit)
    # 0: no such frame begins here, or it ends beyond the table.
    finish[~(has_one | has_two) | (finish > size)] = 0
    then = finish + ((finish > 0) & (octets[finish] == _NEWLINE))
    steps = then.tolist()
    visited: list[int] = []
    at = 0
    while at < size and (step := steps[at]):
        visited.append(at)
        at = step
    found = np.array(visited, dtype=np.int64)
    return begins[found] + place, finish[found] + place, place + at
