"""Measure what parsing JSON costs in a batch: the peer of `benchmarks.typed`.

It runs in a process with a JVM of its own, on one core, over records that Spark holds in memory. What it costs to scan
them is taken away.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.own_process import answer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

DDL = "item STRING, pieces BIGINT, price DOUBLE, paid BOOLEAN, at TIMESTAMP"
# The first round compiles; the fastest one counts.
_ROUNDS = 4
# The records, this many times: a round takes seconds.
_TIMES = 10


def spark_costs(lines: Sequence[bytes], directory: Path) -> dict[str, float]:
    """Return the CPU nanoseconds of a record by the name of the function that parses it."""
    file = directory / "records.parquet"
    pq.write_table(pa.table({"body": pa.array(lines, pa.binary())}), file)
    found: dict[str, float] = answer_of("benchmarks.typed_spark", str(file))
    return found


def _cpu() -> float:
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def _cost(frame: DataFrame, count: int) -> float:
    costs = []
    for _ in range(_ROUNDS):
        began = _cpu()
        frame.write.format("noop").mode("overwrite").save()
        costs.append((_cpu() - began) / count * 1e9)
    return min(costs)


def _main() -> None:
    from pyspark.sql import functions as sf  # noqa: PLC0415  only this process has a JVM

    from orchestration.declarations.settings import Settings  # noqa: PLC0415
    from orchestration.spark.parsing import from_json_records  # noqa: PLC0415
    from orchestration.spark.session.session import spark_session  # noqa: PLC0415

    file = Path(sys.argv[1])
    session = spark_session(Settings(home=file.parent, spark_master="local[1]"), application="benchmark")
    try:
        one = session.read.parquet(str(file))
        records = one.crossJoin(session.range(_TIMES)).select("body").cache()
        count = records.count()
        scan = _cost(records, count)
        parsed = records.select(sf.from_json(records["body"].cast("string"), DDL).alias("r")).select("r.*")
        costs = {
            "from_json in a batch": _cost(parsed, count) - scan,
            "from_json_records in a batch": _cost(from_json_records(records, DDL, column="body"), count) - scan,
        }
    finally:
        session.stop()
    print(json.dumps(costs))  # noqa: T201  for the benchmark


if __name__ == "__main__":
    _main()
