"""Check fingerprints: how much of a file's beginning they cover, and which beginnings match."""

from __future__ import annotations

import pytest

from receiver_runtime.receivers.files.followed.contents.fingerprints import (
    FINGERPRINT_BYTES,
    fingerprint_length,
    fingerprint_of,
    matches,
)


@pytest.mark.parametrize(
    ("head", "lines", "is_complete", "length"),
    [
        (b"one\ntwo\n", 1, False, 4),
        (b"one\ntwo\n", 2, False, 8),
        (b"one\ntwo\n", 3, False, None),
        (b"one\ntwo", 2, True, 7),
        (b"one", 1, False, None),
        (b"one", 1, True, 3),
        (b"", 1, True, None),
        (b"x" * FINGERPRINT_BYTES, 1, False, FINGERPRINT_BYTES),
    ],
)
def test_it_covers_whole_lines_or_everything(head: bytes, lines: int, length: int | None, *, is_complete: bool) -> None:
    assert fingerprint_length(head, lines, is_complete=is_complete) == length


def test_a_longer_beginning_matches_and_a_shorter_one_only_if_it_may_be_partial() -> None:
    fingerprint = fingerprint_of(b"one\ntwo\n", 8)
    assert matches(b"one\ntwo\nthree\n", fingerprint)
    assert not matches(b"one\nTWO\n", fingerprint)
    assert not matches(b"one\n", fingerprint)
    assert matches(b"one\n", fingerprint, is_whole=False)
    assert matches(b"", None)
