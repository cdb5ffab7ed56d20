"""Reads what an output's function with a state needs and returns: the keys that occur, the result and the changes.

A batch and a test do the same here. Loads neither Spark nor the driver log.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from orchestration.declarations.sink import SinkError, checked_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from orchestration.declarations.pipeline import Output


def keys_of(output: Output, inputs: Sequence[DataFrame]) -> DataFrame:
    """Return the keys that occur in the inputs, with repetitions. Raises SinkError."""
    assert output.state is not None
    where, schema = f"output {output.name!r} of pipeline {output.pipeline.name!r}", output.state.schema
    if (keys := output.state.keys or getattr(output.function, "prepare", None)) is not None:
        return checked_result(keys(*inputs), f"the keys of {where}").select(*schema.key_names)
    names = {name.lower() for name in schema.key_names}
    having = [frame for frame in inputs if names <= {column.lower() for column in frame.columns}]
    if not having:
        raise SinkError(
            f"{where} has a state with the key {', '.join(schema.key_names)}, and none of its inputs has these "
            "columns: type the stream with `records=`, or give State(keys=…), a function of the inputs that returns "
            "them"
        )
    return reduce(lambda one, other: one.union(other), (frame.select(*schema.key_names) for frame in having))


def checked_pair(returned: object, where: str) -> tuple[DataFrame, DataFrame]:
    """Return the result and the changed state that a function returned. Raises SinkError."""
    if not isinstance(returned, tuple) or len(returned) != 2:  # noqa: PLR2004
        raise SinkError(
            f"{where} has a state, and returned {type(returned).__name__}: end its function with "
            "`return result, changes`, two DataFrames"
        )
    result, changes = returned
    return checked_result(result, where), checked_result(changes, f"the changed state of {where}")
