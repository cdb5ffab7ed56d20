"""Compute and compare fingerprints, which tell contents apart by their beginnings.

This module owns the format of a fingerprint, and the rule that says how much of a content it covers. It works on bytes
in memory: it must never open a file or ask the driver log.
"""

from __future__ import annotations

import hashlib

#: A length in bytes, and the digest of the first bytes of that length. In a mark: the digest of the bytes before it.
Fingerprint = tuple[int, str]

#: Bytes that a fingerprint covers at most: one small read compares two contents, however long their first lines are.
FINGERPRINT_BYTES = 4096
_DIGEST_BYTES = 12  # bytes of a digest: short enough for a name, and long enough to make a collision negligible


def digest(data: bytes) -> str:
    """Return the digest of a fingerprint's, or a mark's, bytes."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def fingerprint_of(head: bytes, length: int) -> Fingerprint:
    """Return the fingerprint of the first ``length`` bytes."""
    return length, digest(head[:length])


def fingerprint_length(head: bytes, lines: int, *, is_complete: bool) -> int | None:
    """Return how many bytes tell a content apart, or None while it has too few.

    Args:
        head: the first bytes of the content, at most ``FINGERPRINT_BYTES``.
        lines: how many whole lines tell it apart.
        is_complete: the content is not expected to grow, so fewer lines suffice.
    """
    end = 0
    for _ in range(lines):
        end = head.find(b"\n", end) + 1
        if not end:
            break
    if end:
        return end
    if len(head) == FINGERPRINT_BYTES:
        return FINGERPRINT_BYTES
    return len(head) if head and is_complete else None


def matches(head: bytes, fingerprint: Fingerprint | None, *, is_whole: bool = True) -> bool:
    """Return whether a beginning has this fingerprint; every beginning matches None.

    ``is_whole``: a beginning that is shorter than the fingerprint does not match.
    """
    if fingerprint is None:
        return True
    length, expected = fingerprint
    return digest(head[:length]) == expected if len(head) >= length else not is_whole
