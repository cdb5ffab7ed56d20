"""Show in a batch's event in Dagster what the batch read from its sources, in a table of bounded length.

The driver log has all ranges (the view ``batch_input_metadata``). This module reads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from tracker_store.batches.input_metadata import InputMetadata

# Rows in an event: Dagster keeps an event for each batch, and shows all of its rows at once.
MOST_RANGES = 50

_COLUMNS = {
    "stream": "string",
    "source": "string",
    "partition": "string",
    "generation": "int",
    "from_offset": "int",
    "to_offset": "int",
    "lost": "int",
}


def input_table(inputs: InputMetadata) -> dict[str, dg.MetadataValue]:
    """Return the metadata `inputs`, and `inputs_left_out` if there are more ranges than a table has rows."""
    if not inputs.known:
        return {"inputs": dg.MetadataValue.text("not recorded")}
    shown = inputs.ranges[:MOST_RANGES]
    values: dict[str, dg.MetadataValue] = {}
    if shown:
        values["inputs"] = dg.MetadataValue.table(
            [dg.TableRecord({name: getattr(read, name) for name in _COLUMNS}) for read in shown],
            schema=dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in _COLUMNS.items()]),
        )
    if inputs.total > len(shown):
        values["inputs_left_out"] = dg.MetadataValue.int(inputs.total - len(shown))
    if inputs.no_positions:
        streams = ", ".join(inputs.no_positions)
        values["inputs_without_positions" if shown else "inputs"] = dg.MetadataValue.text(f"no positions: {streams}")
    return values
