"""Hold what a spool knows of its channel beside its records, in one small file that is replaced as a whole.

A record has two numbers: its *index*, which counts what the spool has taken since it was made, and its *offset* in the
channel, which counts what the receiver has taken. They differ by a shift, and by the records before it that the
receiver refused: those have no offset, so the next record has it.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.client.errors import SpoolDamagedError

if TYPE_CHECKING:
    from pathlib import Path

_NAME = "state.json"
_MOST_OFFSET = 2**63


@dataclass(slots=True)
class SpoolState:
    """Hold a spool's state.

    Args:
        channel: the only channel to which the spool's records go.
        records: the name of their framing.
        shift: offset minus index, where no record of `refused` is before. None: the spool has never met its channel.
        refused: the indexes of the records that the receiver refused, ascending, as far as the spool may hold them.
        unsent_from: the index from which on no record was ever sent. None: all may have been.
        doubted: first and end of records that the receiver had before they were sent: its owner must decide whether
            they are these. Empty: none.
        path: of the URL at which its records were registered; "": none was yet.
        input_first: the index of the first record of the last input, whose lines `forebay send` took.
        is_input_open: whether that input was not read to its end.
    """

    channel: str
    records: str
    shift: int | None = None
    refused: list[int] = field(default_factory=list)
    unsent_from: int | None = 0
    doubted: list[int] = field(default_factory=list)
    path: str = ""
    input_first: int = 0
    is_input_open: bool = False

    def offset_of(self, index: int) -> int:
        """Return the offset of a record, or of the next one that is not refused."""
        assert self.shift is not None
        return index + self.shift - bisect_left(self.refused, index)

    def index_of(self, offset: int) -> int:
        """Return the index of the record that has an offset."""
        assert self.shift is not None
        index = offset - self.shift
        for refused in self.refused:
            if refused > index:
                break
            index += 1
        return index

    def forget_before(self, first: int) -> bool:
        """Forget refused records before the first one that the spool holds. Return whether there were any."""
        gone = bisect_left(self.refused, first)
        if not gone or self.shift is None:
            return False
        self.shift -= gone
        del self.refused[:gone]
        return True

    def write(self, folder: Path) -> None:
        """Replace the file, durably."""
        known = {name: getattr(self, name) for name in self.__slots__}
        new = folder / f"{_NAME}.new"
        with new.open("w", encoding="utf-8") as file:
            json.dump(known, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / _NAME)
        sync_folder(folder)


def read_state(folder: Path) -> SpoolState | None:
    """Return a spool's state; None: it has none yet. Raises SpoolDamagedError."""
    path = folder / _NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise SpoolDamagedError(
            f"{path} is no state of a spool: {error}: restore it, or move the spool away"
        ) from error
    try:
        known = json.loads(text)
        state = SpoolState(**known)
        _check(state)
    except (ValueError, TypeError, RecursionError) as error:
        raise SpoolDamagedError(
            f"{path} is no state of a spool: {error}: restore it, or move the spool away"
        ) from error
    return state


def _check(state: SpoolState) -> None:
    if not isinstance(state.channel, str) or not isinstance(state.records, str) or not _are_lists(state):
        raise TypeError("it has other types")
    if not isinstance(state.is_input_open, bool) or not isinstance(state.path, str):
        raise TypeError("it has other types")
    numbers = [number for number in (state.shift, state.unsent_from, state.input_first) if number is not None]
    numbers += state.refused + state.doubted
    if any(type(number) is not int or abs(number) >= _MOST_OFFSET for number in numbers):
        raise TypeError("a number is none")
    if sorted(set(state.refused)) != state.refused:
        raise ValueError("refused is not in order")
    if len(state.doubted) not in {0, 2}:
        raise ValueError("doubted is no first and end")


def _are_lists(state: SpoolState) -> bool:
    return isinstance(state.refused, list) and isinstance(state.doubted, list)


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
