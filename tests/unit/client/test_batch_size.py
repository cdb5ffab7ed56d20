"""Test the size of requests: halves after what did not get through, and whole again after it did."""

from __future__ import annotations

from forebay.client.batch_size import BatchLimits, BatchSize

LIMITS = BatchLimits(1000, 2**20, 0.0)


def test_a_refused_request_is_halved_until_its_records_are_through() -> None:
    size = BatchSize(LIMITS)
    size.on_refused(1000)
    assert size.end_from(0) == 500
    size.on_moved(500)
    assert size.end_from(500) == 750
    size.on_refused(750)
    assert (size.end_from(500), size.end_from(749), size.is_searching) == (625, 750, True)
    size.on_moved(750)
    assert (size.end_from(750), size.is_searching) == (1750, False)


def test_what_is_too_large_stays_smaller_and_what_was_cut_grows_again() -> None:
    size = BatchSize(LIMITS)
    size.on_no_answer(2**20)
    assert size.bytes == 2**19
    for _ in range(10):
        size.on_taken()
    assert size.bytes == 2**20
    size.on_too_large(2**20)
    for _ in range(10):
        size.on_taken()
    assert size.bytes == 2**19
    for _ in range(30):
        size.on_no_answer(2**19)
    assert size.bytes == 1
