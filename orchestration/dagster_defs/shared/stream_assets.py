"""Define one external asset per stream: receivers fill it, not Dagster, which only gets observations of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from orchestration.declarations.pipeline import Stream

STREAM_GROUP = "forebay_streams"


def stream_key(stream: Stream) -> dg.AssetKey:
    """Return the key of a stream's external asset."""
    return dg.AssetKey(["forebay", stream.name])


def stream_asset(stream: Stream) -> dg.AssetSpec:
    """Return the asset of a stream, which receivers fill, not Dagster."""
    return dg.AssetSpec(
        stream_key(stream),
        group_name=STREAM_GROUP,
        description=f"Records from {stream.source.address}, stored as blocks by {stream.receivers} receiver(s).",
        kinds={stream.source.kind},
        metadata={"source": stream.source.kind, "address": stream.source.address, "receivers": stream.receivers},
    )
