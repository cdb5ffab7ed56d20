"""Join messages whose text goes on in the next ones: those of one connection or sender, host, application and process.

Owns the open records of one listener. It must never parse or alter a message: a record has the columns of its first
message, and the texts and raw bytes of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.receivers.framing import Cut
from receiver_runtime.record_formats.keyed_joins import KeyedJoins
from receiver_runtime.watching.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_contrib.syslog.framing import SyslogFraming
    from receiver_runtime.receivers.framing import Piece, Splitter
    from receiver_runtime.sources.fields.multiline import Multiline

_PROGRAM = ("hostname", "app_name", "proc_id")


class JoinedSyslogFraming:
    """Join the messages that another framing cuts; see ``framing.JoiningFraming``. For one listener's run.

    Raises ValueError: the pattern is not RE2's.
    """

    def __init__(
        self, framing: SyslogFraming, multiline: Multiline, *, max_record_bytes: int, clock: Clock | None = None
    ) -> None:
        self.schema = framing.schema
        self._framing = framing
        self._clock = clock or Clock()
        self._joins = KeyedJoins(multiline, max_record_bytes, framing.schema, "message", raw="raw")
        #: The program whose message came last on each open connection.
        self._last: dict[str, str] = {}

    def open(self) -> Splitter:
        """See ``Framing``."""
        return self._framing.open()

    def cut(self, pieces: Sequence[Piece]) -> Cut:
        """See ``Framing``: return what is complete now."""
        cut = self._framing.cut(pieces)
        assert isinstance(cut.records, pa.RecordBatch)
        counts = [0 if piece.ends is None else piece.ends.size for piece in pieces]
        owners = np.repeat(np.arange(len(pieces)), counts)
        peers = pa.array([piece.peer for piece in pieces], pa.string()).take(pa.array(owners))
        keys = self._with_plain_lines(_keys(cut.records, peers), cut.records, pieces, counts)
        cut.records = self._joins.add(cut.records, keys, self._clock.monotonic())
        return cut

    def cut_datagrams(self, datagrams: Sequence[bytes], senders: Sequence[str]) -> Cut:
        """Return what is complete with these datagrams."""
        cut = self._framing.cut_datagrams(datagrams, senders)
        if isinstance(cut.records, pa.RecordBatch):
            keys = _keys(cut.records, cut.records.column("sender"))
            cut.records = self._joins.add(cut.records, keys, self._clock.monotonic())
        return cut

    def end(self, peers: Sequence[str] | None = None) -> Cut:
        """See ``JoiningFraming``."""
        if peers is None:
            return Cut(self._joins.end_all())
        for peer in peers:
            self._last.pop(peer, None)
        return Cut(self._joins.end(pa.array(peers, pa.string())))

    def overdue(self) -> Cut:
        """See ``JoiningFraming``."""
        return Cut(self._joins.overdue(self._clock.monotonic()))

    def until_overdue(self) -> float | None:
        """See ``JoiningFraming``."""
        return self._joins.until_overdue(self._clock.monotonic())

    def _with_plain_lines(
        self, keys: pa.StringArray, messages: pa.RecordBatch, pieces: Sequence[Piece], counts: Sequence[int]
    ) -> pa.StringArray:
        """Return the keys, those of lines that have no priority from the message before them on their connection.

        Programs write a text of several lines so, with a header before the first one only.
        """
        is_plain = pc.is_null(messages.column("priority")).to_numpy(zero_copy_only=False)
        sources = np.arange(len(keys))
        earlier: list[str] = []
        end = 0
        for piece, count in zip(pieces, counts, strict=True):
            begin, end = end, end + count
            heads = np.flatnonzero(~is_plain[begin:end]) + begin
            if heads.size < count:
                behind = np.searchsorted(heads, np.arange(begin, end), side="right") - 1
                sources[begin:end] = heads[behind] if heads.size else begin
                if piece.peer in self._last:
                    # Before the first head of the piece.
                    sources[begin:end][behind < 0] = len(keys) + len(earlier)
                    earlier.append(self._last[piece.peer])
                else:
                    sources[begin:end][behind < 0] = np.arange(begin, end)[behind < 0]
            if heads.size:
                self._last[piece.peer] = keys[int(heads[-1])].as_py()
        return pa.concat_arrays([keys, pa.array(earlier, pa.string())]).take(pa.array(sources))


def _keys(messages: pa.RecordBatch, peers: pa.StringArray) -> pa.StringArray:
    """Return whose each message is; ``KeyedJoins`` takes what is before the first NUL as the stream that may end."""
    columns = [messages.column(name) for name in _PROGRAM]
    return pc.binary_join_element_wise(peers, *columns, "\0", null_handling="replace", null_replacement="")
