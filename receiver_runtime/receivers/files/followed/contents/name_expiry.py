"""Find the names that the driver log can forget.

This module owns since when each name belongs to nothing that is present. It must never forget one itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.content_names import (
    ContentNames,
    digest_in,
    number_of,
    second_in,
)
from receiver_runtime.receivers.files.followed.contents.fingerprints import FINGERPRINT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from receiver_runtime.receivers.files.followed.contents.content_names import At
    from tracker_store.blocks.blocks import Position


class NameExpiry:
    """Watch which names are gone, and for how long."""

    def __init__(self, names: ContentNames) -> None:
        self._names = names
        # Since when each name belongs to nothing that is present.
        self._gone: dict[str, float] = {}

    def find(
        self,
        positions: Mapping[str, Position],
        claimed: AbstractSet[str],
        kept_names: AbstractSet[str | None],
        now: float,
        after: float,
        is_ours: Callable[[str], bool],
    ) -> list[str]:
        """Return the names that can be forgotten; see ``KnownContents.expired``."""
        self._gone = {
            name: self._gone.get(name, now)
            for name in positions.keys() | claimed
            if name not in kept_names and second_in(name) is None and is_ours(digest_in(name))
        }
        old = [name for name, since in self._gone.items() if now - since >= after]
        # A second fingerprint is of use while its content is known.
        old += [name for name in positions if (found := second_in(name)) is not None and found[0][0] not in positions]
        # A claim, too, is of use only while its content is known.
        gone = set(old)
        began = {name: self._names.claimed_by(name, at) for name, at in positions.items()}
        kept = {number_of(name) for name in (positions.keys() | claimed) - gone}
        old += _superseded(positions, is_ours)
        old = [
            name
            for name in old
            if name in began
            and (began[name] is None or began[name] in gone)
            and not (self._names.continuation_in(name) is not None and positions[name].offset in kept)
        ]
        return old + [name for name, content in began.items() if content in gone and name not in gone]


def _superseded(positions: Mapping[str, Position], is_ours: Callable[[str], bool]) -> list[str]:
    """Return second fingerprints and marks of which there is a longer one."""
    found = [(name, *one) for name in positions if (one := second_in(name)) is not None and one[0][0] in positions]
    newest: dict[tuple[At, bool], tuple[int, str]] = {}
    for name, at, (length, _) in found:
        of_these = (at, length > FINGERPRINT_BYTES)
        newest[of_these] = max(newest.get(of_these, (0, "")), (length, name))
    kept = {name for _, name in newest.values()}
    return [name for name, at, _ in found if name not in kept and is_ours(digest_in(at[0]))]
