"""Read which channel a request is of, and at which offset its first record is, from its headers. Pure.

A channel is a named sequence of records of one stream, written by one sender at a time. This module decides nothing
about its position.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from receiver_runtime.receivers.http.requests.pushed import header
from receiver_runtime.receivers.http.requests.refusals import refusal
from tracker_store.blocks.channels import ChannelKey

if TYPE_CHECKING:
    from receiver_runtime.receivers.http.channels.parts import ChannelPositionError
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.refusals import RefusedError

#: The headers of a request of a channel, in lower case; answers have the second one too.
CHANNEL_HEADER = b"forebay-channel"
OFFSET_HEADER = b"forebay-offset"
#: What a name matches, and what an offset matches.
NAME_PATTERN = r"[A-Za-z0-9._~-]{1,120}"
_NAME = re.compile(NAME_PATTERN)
_OFFSET = re.compile(r"\d{1,19}", re.ASCII)
# Offsets are below this, so that the driver log's bigint holds the position behind the last record.
_MOST = 2**63 - 1


class Place(NamedTuple):
    """Locate a request's first record: its channel, and its offset there."""

    channel: ChannelKey
    offset: int


def is_name(name: str) -> bool:
    """Return whether a text can be the name of a channel."""
    return _NAME.fullmatch(name) is not None


def no_name(name: str) -> str:
    """Return what is wrong with the name of a channel."""
    return f"{name!r:.150} is no name of a channel: send 1 to 120 of letters, digits and . _ ~ -"


def place_of(headers: Headers, sender: str | None) -> Place | None:
    """Return the place of a request's first record; None: the request is of no channel.

    Args:
        headers: of the request.
        sender: the scope of the request's token; None: the source has no tokens.

    Raises:
        RefusedError: 400, one of both headers is missing, or is none.
    """
    name, offset = header(headers, CHANNEL_HEADER), header(headers, OFFSET_HEADER)
    if name is None and offset is None:
        return None
    if name is None or offset is None:
        missing = "Forebay-Channel" if name is None else "Forebay-Offset"
        raise refusal(HTTPStatus.BAD_REQUEST, f"{missing}: it is missing: send both Forebay-Channel and Forebay-Offset")
    if not is_name(name):
        raise refusal(HTTPStatus.BAD_REQUEST, f"Forebay-Channel: {no_name(name)}")
    if not _OFFSET.fullmatch(offset) or int(offset) >= _MOST:
        raise refusal(
            HTTPStatus.BAD_REQUEST,
            f"Forebay-Offset: {offset!r:.100} is no offset: send how many records of the channel come before the "
            "request's first, as a whole number below 2^63",
        )
    return Place(ChannelKey(sender or "", name), int(offset))


def check_end(place: Place, records: int) -> None:
    """Refuse a request whose records end behind the last offset. Raises RefusedError: 400."""
    if place.offset + records > _MOST:
        raise refusal(
            HTTPStatus.BAD_REQUEST,
            f"Forebay-Offset: {records} records from {place.offset} on end behind the last offset: use another channel",
        )


def elsewhere(name: str, error: ChannelPositionError) -> RefusedError:
    """Return the refusal of a request that does not go on where its channel is."""
    return refusal(
        HTTPStatus.CONFLICT,
        f"Forebay-Offset: {error}, channel {name} is at {error.position}: send the channel's records from there on",
        forebay_offset=str(error.position),
    )


def check_other_ways(*, has_key: bool, key_from: str | None, buffered: bool) -> None:
    """Refuse a request of a channel that asks for another way of acknowledgement too. Raises RefusedError: 400."""
    if buffered:
        what = "ack=buffered: it is answered before its records are stored, and a channel is at its stored ones"
        raise refusal(HTTPStatus.BAD_REQUEST, f"{what}: leave out one of the two")
    if key_from is not None:
        raise refusal(
            HTTPStatus.BAD_REQUEST,
            f"Forebay-Channel: this source takes keys from {key_from}, and a channel's records are known by their "
            "offsets: send without a channel",
        )
    if has_key:
        raise refusal(
            HTTPStatus.BAD_REQUEST,
            "Idempotency-Key: a channel's records are known by their offsets, no key is kept: leave out one of the two",
        )
