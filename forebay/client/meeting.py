"""Decide where a spool goes on when it meets its channel: which offset its records have.

What could lose or double a record is its owner's choice, and an error until there is one. It never waits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn

from forebay.client.errors import ChannelMismatchError

if TYPE_CHECKING:
    from forebay.client.batch import Batch
    from forebay.client.spool import Spool

_log = logging.getLogger("forebay.client")

OnMismatch = Literal["error", "resend", "discard"]
_WAYS_OUT = (
    'open the sender with on_mismatch="resend" to send what the spool holds as new records, with "discard" to delete '
    "what it holds that may have been sent, or take another channel and spool"
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Hold where a spool goes on: its shift, from which index on no record was sent, and what is registered before."""

    shift: int
    unsent_from: int
    registered: int


def meet(spool: Spool, position: int, on_mismatch: OnMismatch) -> Meeting:
    """Return how a spool goes on with a channel that is at a position. Raises ChannelMismatchError."""
    state = spool.state
    unsent_from = spool.end if state.unsent_from is None else state.unsent_from
    if state.shift is None:
        return Meeting(position - spool.first, unsent_from, spool.first)
    if state.doubted:
        return _after_doubt(spool, position, on_mismatch)
    first, unsent = state.offset_of(spool.first), state.offset_of(unsent_from)
    if first <= position <= unsent:
        return Meeting(state.shift, unsent_from, state.index_of(position))
    if position > unsent and spool.first >= unsent_from:
        # All that it holds is new, and the channel has gone on without it.
        _log.warning("%s: the channel is at %d, not %d: goes on there", spool.folder, position, unsent)
        return _at(spool, unsent_from, position)
    if on_mismatch == "resend":
        return _at(spool, spool.first, position)
    if on_mismatch == "discard":
        return _at(spool, unsent_from, position)
    if position < first:
        raise ChannelMismatchError(
            f"the channel expects the record with offset {position}, and {spool.folder} holds only those from {first} "
            "on: the URL is another stream's, or the token another sender's, or the receiver lost records that were "
            f"registered (its driver log was restored, or its stream removed): {_WAYS_OUT}"
        )
    raise ChannelMismatchError(
        f"the channel expects the record with offset {position}, and {spool.folder} has sent only those before "
        f"{unsent}: the URL is another stream's, the spool is an old copy, or another sender uses the channel: "
        f"{_WAYS_OUT}"
    )


def doubt(spool: Spool, batch: Batch, known: int) -> NoReturn:
    """End a sender: the receiver had records before they were sent. A later process must not pass over them."""
    noted = note_doubt(spool, batch.first, batch.end)
    raise ChannelMismatchError(
        f"{known} records were registered before {spool.folder} sent them: another sender uses the channel, or a proxy "
        f"repeats requests by itself: give each sender a channel of its own, and stop the proxy's retries{noted}"
    )


def note_doubt(spool: Spool, first: int, end: int) -> str:
    """Note durably that records may be another sender's. Return what to add to the error if they can't be noted."""
    assert spool.state.shift is not None
    try:
        spool.bind(spool.state.shift, doubted=(first, end))
    except OSError as error:
        return (
            f"; the spool could not note it ({error}), and passes over the records {first} to {end - 1} when it is "
            "opened again: keep a copy of it"
        )
    return ""


def _after_doubt(spool: Spool, position: int, on_mismatch: OnMismatch) -> Meeting:
    begin, end = spool.state.doubted
    if on_mismatch == "error":
        raise ChannelMismatchError(
            f"the channel had {end - begin} records before {spool.folder} sent them, so they may be another sender's: "
            'open the sender with on_mismatch="resend" if they are, with "discard" if they are the same'
        )
    return _at(spool, begin if on_mismatch == "resend" else end, position)


def _at(spool: Spool, index: int, position: int) -> Meeting:
    """Give a record the offset that the channel expects; all before it are done with, and none from it on was sent."""
    assert spool.state.shift is not None
    return Meeting(spool.state.shift + position - spool.state.offset_of(index), index, index)
