"""Show a batch's blocks in the JSON of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracker_store.batches.received_block_tracker import AllocatedBlock


def block_as_json(block: AllocatedBlock, receivers: Mapping[int, str]) -> dict[str, object]:
    """Return one block as JSON fields; `receivers` maps ids to names."""
    return {
        "receiver": receivers.get(block.receiver_id, str(block.receiver_id)),
        "sequence": block.sequence,
        "records": block.records,
        "segment": block.path,
        "offset": block.handle.offset,
        "length": block.handle.length,
    }
