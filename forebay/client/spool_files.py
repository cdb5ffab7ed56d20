"""Open the files of a spool, whatever a kill or a power cut left of them."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
from typing import TYPE_CHECKING

from forebay.client.errors import SpoolDamagedError, SpoolLockedError
from forebay.client.segment import SUFFIX, Segment, first_of
from forebay.client.spool_state import SpoolState, read_state

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("forebay.client")


def locked(folder: Path) -> int:
    """Return the descriptor of a folder's lock; closing it releases it. Raises SpoolLockedError."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SpoolLockedError(
            f"{folder} is open in another process or sender: give each a spool and a channel of its own"
        ) from error
    return descriptor


def opened(folder: Path, channel: str, records: str) -> tuple[SpoolState, list[Segment]]:
    """Return a spool's state and its segments, at least one, in order; make them if the folder has none.

    Raises:
        SpoolDamagedError: a file is not as it was written, or the spool is of another channel or framing.
    """
    state = read_state(folder)
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    if not paths:
        if state is not None and state.shift is not None:
            _log.warning("%s has no records any more: it goes on where its channel is", folder)
        state = SpoolState(channel, records)
        state.write(folder)
        return state, [Segment.create(folder, 0)]
    if state is None:
        raise SpoolDamagedError(
            f"{folder} has records, and no state.json: restore it, or move the spool away and use another one"
        )
    for name, theirs, ours in (("channel", state.channel, channel), ("records", state.records, records)):
        if theirs != ours:
            raise SpoolDamagedError(
                f"{folder} is a spool of {name} {theirs!r}, not {ours!r}: open it so, or take another folder"
            )
    return state, _opened_segments(folder, state, paths)


def _opened_segments(folder: Path, state: SpoolState, paths: list[Path]) -> list[Segment]:
    segments: list[Segment] = []
    try:
        segments.extend(Segment.open(path, first_of(path)) for path in paths)
        for segment, following in itertools.pairwise(segments):
            segment.end = following.first
        if torn := segments[-1].recover():
            _log.warning("%s: cut %d bytes of a record that was not written whole", segments[-1].path, torn)
        os.fsync(segments[-1].descriptor)
        if state.unsent_from is None:
            state.unsent_from = segments[-1].end
            state.write(folder)
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    return segments
