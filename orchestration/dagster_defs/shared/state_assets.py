"""Define one external asset per output with a state: batches change it, and each that did is one of its events.

The driver log and the block store hold the state; Dagster only shows how it grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.dagster_defs.shared.page_links import page_of_pipeline
from orchestration.declarations.state.event_time import EventJoin

if TYPE_CHECKING:
    from datetime import datetime

    from orchestration.batches.attempt_outputs import OutputResult
    from orchestration.declarations.pipeline import Output, Pipeline
    from orchestration.declarations.state.declared import State


def state_key(output: Output) -> dg.AssetKey:
    """Return the key of the asset of an output's state."""
    return dg.AssetKey([*output.asset_key.path, "state"])


def state_assets(pipeline: Pipeline) -> list[dg.AssetSpec]:
    """Return the assets of the pipeline's states. Nothing computes them: batches that change a state report it."""
    return [
        dg.AssetSpec(
            state_key(output),
            deps=[output.asset_key],
            group_name=pipeline.name,
            description=(
                f"State of {pipeline.name}.{output.name}: each batch that changed it, with the keys that it changed, "
                "those that it deleted, how many there are, and the bytes that it wrote; of an output by event time "
                "also its watermark and the late records. forebay.state_status has more."
            ),
            kinds={"forebay"},
            metadata={**page_of_pipeline(pipeline), "key": _key(output, output.state)},
        )
        for output in pipeline.outputs.values()
        if output.state is not None
    ]


def _key(output: Output, state: State) -> list[str]:
    """Return the columns of the key; of windows whose records are kept, those that say which window it is."""
    if output.event is None or output.event.state is not None:
        return list(state.schema.key_names)
    kind = output.event.kind
    return list(kind.on if isinstance(kind, EventJoin) else output.event.identity)


def state_materialization(output: Output, batch_time: datetime, result: OutputResult) -> dg.AssetMaterialization | None:
    """Return the event of a batch that changed the output's state; None if this call changed nothing in it."""
    state = result.state
    if state is None or not (state.changed or state.deleted or state.late):
        return None
    counts = {
        "changed_keys": state.changed,
        "deleted_keys": state.deleted,
        "bytes": state.bytes,
        "keys": state.keys,
        "late_records": state.late,
    }
    watermark = {} if state.watermark is None else {"watermark": dg.MetadataValue.text(state.watermark.isoformat())}
    return dg.AssetMaterialization(
        state_key(output),
        metadata={
            "batch_time": dg.MetadataValue.text(batch_time.isoformat()),
            "attempt": dg.MetadataValue.int(result.attempt),
            **{name: dg.MetadataValue.int(count) for name, count in counts.items() if count is not None},
            **watermark,
        },
    )
