"""Check names beyond the suite of sinks: of a table in Postgres, in its other modes, and of Parquet's folders."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from forebay import DeclarationError, ParquetSink
from forebay.testing.edge_values import NAMES
from orchestration.declarations.sink import SinkError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark
from tests.integration.orchestration.target_database import TIME, Target, attempt
from tests.support.searches import examples
from tests.support.sinks.any_results import NAME
from tests.support.sinks.postgres_target import PostgresTarget

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

LATER = TIME + timedelta(hours=2)


def of_strings(names: Sequence[str], value: str) -> DataFrame:
    schema = StructType([StructField(name, StringType()) for name in names])
    return cast("DataFrame", FrameWithoutSpark([tuple(f"{value}{at}" for at in range(len(names)))], schema=schema))


@pytest.mark.search
@pytest.mark.parametrize("mode", ["overwrite", "merge"])
@settings(max_examples=examples(120), suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAME, min_size=1, max_size=3), table=st.sampled_from(NAMES) | st.just("counts"))
@example(["cpu %"], "counts")
@example(["a"], "100 %")
def test_postgres(target: Target, mode: Any, names: list[str], table: str) -> None:  # noqa: ANN401
    assume("." not in table and table)
    found = PostgresTarget(target, table, mode=mode, key=names[0] if mode == "merge" else None)
    try:
        sink = found.sink()
    except DeclarationError:
        return
    try:
        try:
            sink.write(of_strings(names, "first"), attempt())
        except SinkError:
            assert found.read() == []
            return
        sink.write(of_strings(names, "second"), attempt(time=LATER))
        rows = {tuple(row[name] for name in names) for row in found.read()}
        assert rows >= {tuple(f"second{number}" for number in range(len(names)))}
    finally:
        found.drop()


def test_a_column_that_readers_take_from_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    for compact in (False, True):
        with pytest.raises(SinkError, match=r"has a column 'Date', 'batch_time', which is the target's own: rename"):
            ParquetSink(tmp_path, compact=compact).write(of_strings(["a", "Date", "batch_time"], "x"), attempt())
    assert list(tmp_path.iterdir()) == []
