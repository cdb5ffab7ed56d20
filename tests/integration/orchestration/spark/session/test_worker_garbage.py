"""Test what the garbage collection after each task of a Python worker looks through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# pandas and Arrow alone have more objects.
_LOADED = 50_000


def test_a_worker_does_not_look_through_what_was_loaded_before_it_was_forked(session: SparkSession) -> None:
    def count(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc  # noqa: PLC0415  in the worker

        import pyarrow as pa  # noqa: PLC0415

        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    [row] = session.range(0, 1, 1, 1).mapInArrow(count, "frozen BIGINT").collect()
    assert row["frozen"] > _LOADED
