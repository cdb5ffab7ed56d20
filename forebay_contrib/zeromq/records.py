"""Turns ZeroMQ messages, each a list of frames, into one Arrow batch and dead letters. Knows no socket."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay_contrib.zeromq.declaration import ZeroMQ
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.receivers.framing import Cut, too_large

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = schema_of(ZeroMQ.columns)


def cut(messages: Sequence[Sequence[bytes]], *, has_topics: bool, max_record_bytes: int) -> Cut:
    """Return a row for each message, in order, and those with more bytes as dead letters.

    Args:
        has_topics: whether the first of several frames is the topic; a message of one frame is all body.
    """
    found = Cut()
    topics: list[bytes | None] = []
    bodies: list[bytes] = []
    further: list[Sequence[bytes]] = []
    for frames in messages:
        if sum(map(len, frames)) > max_record_bytes:
            found.dead_letters.append(too_large(b"".join(frames)))
            continue
        body = 1 if has_topics and len(frames) > 1 else 0
        topics.append(frames[0] if body else None)
        bodies.append(frames[body])
        further.append(frames[body + 1 :])
    if bodies:
        starts = [0]
        for frames in further:
            starts.append(starts[-1] + len(frames))
        found.records = pa.RecordBatch.from_arrays(
            [
                pa.array(topics, pa.binary()),
                pa.array(bodies, pa.binary()),
                pa.ListArray.from_arrays(
                    pa.array(starts, pa.int32()), pa.array(chain.from_iterable(further), pa.binary())
                ),
            ],
            schema=SCHEMA,
        )
    return found
