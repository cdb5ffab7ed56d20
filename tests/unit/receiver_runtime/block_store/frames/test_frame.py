from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_store.frames.errors import InvalidFrameError
from receiver_runtime.block_store.frames.frame import (
    HEADER_LENGTH,
    DeadLetterReason,
    FrameHeader,
    FrameKind,
    SourceRule,
    decode_header,
    encode_frame,
    frame_checksum,
)
from tests.support.receivers.frame_fields import block_fields
from tests.unit.receiver_runtime.support import dead_letter_frame, frame, whole

IDS = st.integers(0, 2**63 - 1)


@given(
    payload=st.binary(min_size=1, max_size=200),
    rule=st.sampled_from(SourceRule),
    numbers=st.tuples(IDS, IDS, IDS, IDS),
    records=st.integers(1, 2**32 - 1),
    mark=st.integers(1, 2**32 - 1),
)
def test_a_header_is_decoded_as_it_was_encoded(
    payload: bytes, rule: SourceRule, numbers: tuple[int, int, int, int], records: int, mark: int
) -> None:
    receiver_id, epoch, sequence, through = numbers
    encoded = encode_frame(
        payload,
        block_fields(
            source_rule=rule,
            receiver_id=receiver_id,
            epoch=epoch,
            sequence=sequence,
            registered_through=through,
            records=records,
            mark=mark,
        ),
    )
    header, crc = decode_header(encoded.header)
    assert header == FrameHeader(
        FrameKind.BLOCK, rule, receiver_id, epoch, sequence, through, records, mark, payload_length=len(payload)
    )
    assert crc == encoded.crc32c == frame_checksum(encoded.header, payload)
    assert encoded.length == header.frame_length == HEADER_LENGTH + len(payload)


def test_the_checksum_is_crc32c_over_the_payload_and_the_rest_of_the_header() -> None:
    data = whole(frame(b"abc"))
    stored = int.from_bytes(data[HEADER_LENGTH - 4 : HEADER_LENGTH], "little")
    assert stored == google_crc32c.value(data[: HEADER_LENGTH - 4] + data[HEADER_LENGTH:])


def test_a_dead_letter_carries_its_reason_and_part() -> None:
    header, _ = decode_header(dead_letter_frame(b"\xff", part=3).header)
    assert (header.kind, header.reason, header.part) == (
        FrameKind.DEAD_LETTER,
        DeadLetterReason.RECORD_TOO_LARGE,
        3,
    )
    assert DeadLetterReason.RECORD_TOO_LARGE.label == "record_too_large"


def test_a_header_of_zeros_never_validates() -> None:
    with pytest.raises(InvalidFrameError, match="no frame begins here"):
        decode_header(bytes(HEADER_LENGTH))


@given(position=st.integers(0, HEADER_LENGTH - 5), bit=st.integers(0, 7))
def test_any_flipped_bit_in_the_header_is_noticed(position: int, bit: int) -> None:
    data = bytearray(frame().header)
    data[position] ^= 1 << bit
    with pytest.raises(InvalidFrameError):
        decode_header(bytes(data))


@pytest.mark.parametrize(
    ("payload", "records", "mark", "reason", "message"),
    [
        (b"", 1, 1, None, "payload of 0 bytes"),
        (b"x", 0, 1, None, "0 records"),
        (b"x", 1, 0, None, "mark 0"),
        (b"x", 1, 1, DeadLetterReason.TRUNCATED, "a block has none"),
    ],
)
def test_an_invalid_frame_is_refused(
    payload: bytes, records: int, mark: int, reason: DeadLetterReason | None, message: str
) -> None:
    with pytest.raises(InvalidFrameError, match=message):
        encode_frame(payload, block_fields(source_rule=SourceRule.OFFSETS, records=records, mark=mark, reason=reason))


@pytest.mark.parametrize("place", [8, 12])
def test_a_header_without_a_mark_is_refused(place: int) -> None:
    data = bytearray((frame() if place == 8 else dead_letter_frame(b"a")).header)
    data[place : place + 4] = bytes(4)
    data[56:60] = google_crc32c.value(bytes(data[:56])).to_bytes(4, "little")
    with pytest.raises(InvalidFrameError, match=r"no process writes such a header: .* mark 0"):
        decode_header(bytes(data))


def test_a_frame_of_a_newer_release_is_reported_as_such() -> None:
    data = bytearray(frame().header)
    data[4] = 3
    with pytest.raises(InvalidFrameError, match="header version 3 is not known"):
        decode_header(bytes(data))
