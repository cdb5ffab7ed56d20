"""Fuzz the headers by which a request is of a channel, and the notes that salvage reads."""

from __future__ import annotations

from contextlib import suppress

from receiver_runtime.block_path.channel_moves import decode_note, encode_moves
from receiver_runtime.receivers.http.channels.channel import check_end, is_name, place_of
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.refusals import RefusedError
from tests.fuzz.http_bodies import check_refusal
from tests.fuzz.target import fuzzed
from tracker_store.blocks.blocks import ChannelMove

_MOVES = [ChannelMove("env:TOKEN", "a", 0, 10), ChannelMove("", "b.c_~-", 2**62, 2**62 + 1)]


@fuzzed(
    "http_channel",
    valid=[b"meter-7\n0", b"a.b_~-\n9223372036854775806", b"x\n0012"],
    words=[b"\n", b"9223372036854775807", b"\xb2", b"-", b"forebay"],
    attacks=[b"a" * 60_000 + b"\n" + b"9" * 60_000],
)
def test_a_place_is_a_name_and_an_offset_that_fit_the_driver_log(data: bytes) -> None:
    name, _, offset = data.partition(b"\n")
    try:
        place = place_of([(b"forebay-channel", name), (b"forebay-offset", offset)], None)
        assert place is not None
        check_end(place, 1)
    except (RefusedError, PushRefusedError) as error:
        check_refusal(error)
        return
    assert is_name(place.channel.name)
    assert place.channel.name.encode("ascii") == name.strip()
    assert 0 <= place.offset < 2**63 - 1
    assert place.offset == int(offset)


@fuzzed(
    "channel_moves",
    valid=[encode_moves(_MOVES), b"\0"],
    words=[b'"channel_moves"', b"[", b"]", b'"a"', b"9" * 30],
    attacks=[b'{"channel_moves":' + b"[" * 100_000],
)
def test_a_note_has_moves_or_is_refused(data: bytes) -> None:
    with suppress(ValueError):
        for move in decode_note(data).channel_moves:
            assert 0 <= move.from_offset < move.to_offset < 2**63
