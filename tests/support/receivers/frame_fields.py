"""The fields of a block's frame, of which a test says what matters to it."""

from __future__ import annotations

from typing import Any

from receiver_runtime.block_store.frames.frame import FrameFields, FrameKind, SourceRule


def block_fields(
    *,
    source_rule: SourceRule = SourceRule.NOT_SENT_AGAIN,
    receiver_id: int = 1,
    epoch: int = 1,
    sequence: int = 1,
    registered_through: int | None = None,
    records: int = 1,
    mark: int = 1,
    **more: Any,  # noqa: ANN401  the other fields
) -> FrameFields:
    """Return the fields of a block; all blocks before it are registered if the test does not say otherwise."""
    return FrameFields(
        kind=FrameKind.BLOCK,
        source_rule=source_rule,
        receiver_id=receiver_id,
        epoch=epoch,
        sequence=sequence,
        registered_through=sequence - 1 if registered_through is None else registered_through,
        records=records,
        mark=mark,
        **more,
    )
