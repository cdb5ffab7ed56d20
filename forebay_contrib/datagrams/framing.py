"""Make rows of the lines of UDP datagrams, by vector code. Knows no socket.

A datagram is whole: its last line needs no line end, and no line goes on in the next one.
"""

from __future__ import annotations

import codecs
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_contrib.datagrams.declaration import Datagrams
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.connection_places import peer_of
from receiver_runtime.receivers.framing import Cut, aside
from receiver_runtime.receivers.lines import LineFraming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter

_NEWLINE = b"\n"
_LARGEST_LINE = 2**16  # bytes: no datagram is larger
_MAPPED = "::ffff:"  # before an IPv4 address, where a socket for both IP versions received it


def _now() -> int:
    return time.time_ns() // 1000


class DatagramFraming:
    """Turn datagrams into the columns of ``Datagrams``. Safe from any thread.

    Args:
        whole: make one row of each datagram, in place of one of each line.
        now: gives microseconds since 1970.
    """

    schema = schema_of(Datagrams.columns)

    def __init__(self, *, whole: bool, now: Callable[[], int] = _now) -> None:
        self._whole = whole
        self._now = now
        self._lines = LineFraming(max_record_bytes=_LARGEST_LINE)

    def cut(self, datagrams: Sequence[bytes], senders: Sequence[str]) -> Iterator[Cut]:
        """Yield the rows of these datagrams, and what is no text."""
        datagrams = [one.removeprefix(codecs.BOM_UTF8) for one in datagrams]
        yield self._of_texts(datagrams, senders) if self._whole else self._of_lines(datagrams, senders)

    def _of_lines(self, datagrams: Sequence[bytes], senders: Sequence[str]) -> Cut:
        data = b"".join(one if one[-1:] == _NEWLINE else one + _NEWLINE for one in datagrams)
        found, starts = self._lines.cut_placed(data)
        # Where each datagram ends, with the line end that it has or was given.
        ends = np.cumsum([len(one) + (one[-1:] != _NEWLINE) for one in datagrams])
        letters: list[DeadLetter] = []
        if found.dead_letters:
            octets = np.frombuffer(data, np.uint8)
            bad = np.setdiff1d(np.append(0, np.flatnonzero(octets == _NEWLINE[0])[:-1] + 1), starts)
            owners = [senders[owner] for owner in np.searchsorted(ends, bad, side="right").tolist()]
            letters = [
                replace(letter, peer=peer_of(owner)) for letter, owner in zip(found.dead_letters, owners, strict=True)
            ]
        if found.records is None:
            return Cut(dead_letters=letters)
        of = pa.array(np.searchsorted(ends, starts, side="right"))
        return Cut(self._rows(found.records, pa.array(senders, pa.string()).take(of)), letters)

    def _of_texts(self, datagrams: Sequence[bytes], senders: Sequence[str]) -> Cut:
        texts: list[str] = []
        owners: list[str] = []
        letters: list[DeadLetter] = []
        for datagram, sender in zip(datagrams, senders, strict=True):
            try:
                texts.append(datagram.decode())
                owners.append(sender)
            except UnicodeDecodeError:
                letters.append(aside(DeadLetterReason.INVALID_ENCODING, datagram, peer=peer_of(sender)))
        return Cut(self._rows(pa.array(texts, pa.string()), pa.array(owners, pa.string())), letters)

    def _rows(self, values: pa.StringArray, senders: pa.StringArray) -> pa.RecordBatch | None:
        there = pc.greater(pc.binary_length(values), 0)
        if not pc.all(there).as_py():
            values, senders = values.filter(there), senders.filter(there)
        if not len(values):
            return None
        now = pa.scalar(self._now(), pa.int64()).cast(self.schema.field("received_at").type)
        # A prefix that no other address has.
        hosts = pc.replace_substring_regex(senders, f"^{_MAPPED}", "")
        return pa.RecordBatch.from_arrays([pa.repeat(now, len(values)), hosts, values], schema=self.schema)
