"""Owns the two columns that say where a batch's record is from: the number of its block, and its number in that.

They are the same whenever the batch is read, so that a record has an identity. Python workers load this module, so it
loads neither Dagster nor SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

#: The block's number among those of the input in the batch, and the record's in the block, both from 0.
BLOCK_NUMBER, RECORD_NUMBER = "_block", "_record"
#: The option of the format that adds them; any value.
NUMBERED = "numbered"
#: Both, as Spark's DDL.
NUMBERS = f"{BLOCK_NUMBER} INT, {RECORD_NUMBER} BIGINT"


def numbered(batches: Iterable[pa.RecordBatch], block: int, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one block with the two columns; `first`: the number of their first record."""
    import numpy as np  # noqa: PLC0415  only workers need it
    import pyarrow as pa  # noqa: PLC0415  the same

    for batch in batches:
        numbers = pa.array(np.arange(first, first + batch.num_rows))
        blocks = pa.array(np.full(batch.num_rows, block, np.int32))
        yield batch.append_column(BLOCK_NUMBER, blocks).append_column(RECORD_NUMBER, numbers)
        first += batch.num_rows
