"""Cut a connection's bytes into messages of the Forward protocol, and note where their entries end.

Owns the bytes of the message whose end has not come. It decodes nothing, and knows no connection.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from forebay_contrib.fluent_forward.scanning import (
    NIL,
    NotMessagePackError,
    TooLongError,
    ValueScanner,
    array_of,
    is_array,
)

# What an entry begins with whose time is Fluentd's own: an array of two values, the first of which is an extension of
#: eight bytes.
_EVENT_TIME_HEAD = b"\x92\xd7\x00"
# The same of an entry of Fluent Bit's, which has metadata beside its time; most have an empty map.
_METADATA_HEAD, _NO_METADATA, _METADATA_AT = b"\x92\x92\xd7\x00", 0x80, 12
# Where the records of such entries begin, behind eight bytes of time.
_EVENT_TIME_BYTES, _METADATA_BYTES = 11, 13
_TIME_BYTES = 8
# Of an entry that is one: an array, a time, a map. Fewer bytes would cost a multiple of their memory.
_LEAST_ENTRY_BYTES = 3
# How many values a message has: tag, entries or time, record, option.
_LEAST_VALUES, _MOST_VALUES = 2, 4


class EntryScanner:
    """Scan one entry after the other.

    Args:
        most: each ends at this place, or before it.
        at: where the first one begins.
    """

    def __init__(self, most: int, at: int) -> None:
        self._scanner = ValueScanner(most, at)
        self._most_entries = most // _LEAST_ENTRY_BYTES + 1
        self._is_open = False
        self._is_plain = False
        #: Where the first entry begins.
        self.begin = at
        #: Where each entry ends.
        self.ends = array("I")
        #: Of how many values each record consists; 0: it was not scanned by itself.
        self.values = array("I")
        #: Whether each record has something that JSON may not have.
        self.odd = bytearray()

    @property
    def at(self) -> int:
        """Return where the walk is."""
        return self._scanner.at

    def scan(self, data: bytes | bytearray) -> bool:
        """Go on with an entry, or begin the next one; return whether it is whole. Raises as ``ValueScanner.scan``."""
        scanner = self._scanner
        if not self._is_open:
            if len(self.ends) >= self._most_entries:
                raise TooLongError(f"more than {self._most_entries} entries")
            at = scanner.at
            scanner.at = plain_record_at(data, at) or at
            self._is_plain = scanner.at > at
            scanner.begin()
        self._is_open = not scanner.scan(data)
        if self._is_open:
            return False
        self.ends.append(scanner.at)
        self.values.append(scanner.values if self._is_plain else 0)
        self.odd.append(scanner.is_odd)
        return True


def plain_record_at(data: bytes | bytearray, at: int) -> int:
    """Return where the record begins of an entry that has the usual form of time; 0: it has another, or is cut off."""
    if len(data) > at + _EVENT_TIME_BYTES and data.startswith(_EVENT_TIME_HEAD, at):
        return at + _EVENT_TIME_BYTES
    if (
        len(data) > at + _METADATA_BYTES
        and data.startswith(_METADATA_HEAD, at)
        and data[at + _METADATA_AT] == _NO_METADATA
    ):
        return at + _METADATA_BYTES
    return 0


def plain_time_at(at: int, record_at: int) -> int:
    """Return where the eight bytes of the time of such an entry begin."""
    return at + (_EVENT_TIME_BYTES if record_at == at + _EVENT_TIME_BYTES else _METADATA_AT) - _TIME_BYTES


@dataclass(slots=True, eq=False)
class Message:
    """Hold one whole value of a connection's stream."""

    data: bytes
    #: The entries, if the second value is an array.
    entries: EntryScanner | None = None


class MessageSplitter:
    """Cut one connection's stream. The result does not depend on how the network cut the stream up.

    Args:
        most_bytes: of a message.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._held = bytearray()
        self._reset()

    def _reset(self) -> None:
        self._scanner = ValueScanner(self.most_bytes)
        self._entries: EntryScanner | None = None
        self._entries_left = 0
        # How many values of the message are left; None: it was not begun.
        self._left: int | None = None
        self._number = 0
        self._is_open = False

    @property
    def held_bytes(self) -> int:
        """Return how many bytes wait for their message's end."""
        return len(self._held)

    def held(self) -> bytes:
        """Return what waits for its message's end."""
        return bytes(self._held)

    def allow(self, most_bytes: int) -> None:
        """Change the limit, between two messages."""
        self.most_bytes = most_bytes
        self._reset()

    def take(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._held += data

    def next_message(self) -> Message | None:
        """Return the next whole message, or None.

        Raises:
            NotMessagePackError: the stream is no MessagePack, or has something between messages.
            TooLongError: a message is longer than allowed.
        """
        # A nil between messages is a sender's heartbeat.
        if self._left is None:
            beats = len(self._held) - len(self._held.lstrip(bytes([NIL])))
            del self._held[:beats]
        if not self._held or not self._scan():
            return None
        end = self._scanner.at
        message = Message(bytes(self._held[:end]), self._entries)
        del self._held[:end]
        self._reset()
        return message

    def _scan(self) -> bool:
        """Go on with the message; return whether it is whole."""
        if self._left is None and not self._begin():
            return False
        while self._left or self._entries_left:
            if self._entries_left:
                assert self._entries is not None
                if not self._entries.scan(self._held):
                    return False
                self._entries_left -= 1
                self._scanner.at = self._entries.at
            elif not self._scan_value():
                return False
        return True

    def _begin(self) -> bool:
        """Find out what the message is; return False if too few bytes have come for it."""
        if not is_array(self._held[0]):
            raise NotMessagePackError(f"no message begins with the byte 0x{self._held[0]:02x}")
        outer = array_of(self._held, 0)
        if outer is None:
            return False
        if _LEAST_VALUES <= outer.values <= _MOST_VALUES:
            self._left, self._scanner.at = outer.values, outer.begin
        else:
            # No message: it is one value, whatever it has.
            self._left, self._number = 1, _MOST_VALUES
        return True

    def _scan_value(self) -> bool:
        scanner, at = self._scanner, self._scanner.at
        assert self._left is not None
        if not self._is_open:
            if self._number == 1:
                if at >= len(self._held):
                    return False
                if is_array(self._held[at]):
                    return self._begin_entries(at)
            scanner.begin()
        self._is_open = not scanner.scan(self._held)
        if self._is_open:
            return False
        self._left -= 1
        self._number += 1
        return True

    def _begin_entries(self, at: int) -> bool:
        inner = array_of(self._held, at)
        if inner is None:
            return False
        if inner.begin + inner.values > self.most_bytes:
            raise TooLongError(f"more than {self.most_bytes} bytes")
        assert self._left is not None
        self._entries = EntryScanner(self.most_bytes, inner.begin)
        self._entries_left = inner.values
        self._scanner.at = inner.begin
        self._left -= 1
        self._number += 1
        return True
