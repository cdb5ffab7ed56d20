"""Hold the second fingerprints of contents, and their marks: what is known of a content beyond its first lines.

This module owns when each second fingerprint was first seen. It must never look at a file, or ask the driver log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.fingerprints import FINGERPRINT_BYTES, digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from receiver_runtime.receivers.files.followed.contents.content_names import At
    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from tracker_store.blocks.blocks import Position


class SecondFingerprints:
    """Hold the longest second fingerprint of each content, and its last mark."""

    def __init__(self) -> None:
        self._seconds: dict[At, Fingerprint] = {}
        self._marks: dict[At, Fingerprint] = {}
        self._by_second: dict[Fingerprint, list[At]] = {}
        # The number of the refresh at which each second fingerprint was first seen.
        self._seen_at: dict[At, int] = {}

    def learn(self, found: Iterable[tuple[At, Fingerprint]], refreshes: int) -> None:
        """Replace what is known by what the driver log has at this refresh."""
        self._seconds = {}
        self._marks = {}
        for at, one in found:
            of_these = self._seconds if one[0] <= FINGERPRINT_BYTES else self._marks
            of_these[at] = max(one, of_these.get(at, one))
        self._seen_at = {at: self._seen_at.get(at, refreshes) for at in self._seconds}
        self._by_second = {}
        for at, second in self._seconds.items():
            self._by_second.setdefault(second, []).append(at)

    def add(self, here: At, second: Fingerprint, refreshes: int) -> None:
        """Note a second fingerprint that this receiver registers."""
        self._seconds[here] = second
        self._by_second.setdefault(second, []).append(here)
        self._seen_at[here] = refreshes

    def add_mark(self, here: At, mark: Fingerprint) -> None:
        """Note a mark that this receiver registers."""
        self._marks[here] = mark

    def of(self, name: str, generation: int) -> Fingerprint | None:
        """Return a content's second fingerprint, or None."""
        return self._seconds.get((name, generation))

    def mark_of(self, name: str, generation: int) -> Fingerprint | None:
        """Return a content's last mark, or None."""
        return self._marks.get((name, generation))

    def seen_at(self, name: str, generation: int) -> int:
        """Return the number of the refresh at which a content's second fingerprint was first seen."""
        return self._seen_at[name, generation]

    def has_any(self, name: str, generation: int) -> bool:
        """Return whether a content has a second fingerprint or a mark."""
        return (name, generation) in self._seconds or (name, generation) in self._marks

    def has_ended(self, name: str, at: Position, length: int) -> bool:
        """Return whether a content got beyond its fingerprint and has no second one: it was lost, or renamed."""
        return (name, at.generation) not in self._seconds and length < min(at.offset, FINGERPRINT_BYTES)

    def continued_with(self, head: bytes) -> list[At]:
        """Return the contents whose second fingerprint this beginning has, the shortest second fingerprint first."""
        lengths = {length for length, _ in self._by_second if length <= len(head)}
        seconds = [(length, digest(head[:length])) for length in sorted(lengths)]
        return [at for second in seconds for at in self._by_second.get(second, ())]
