"""Test which columns of streams a result's columns are said to come from, by the plans of a real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

from forebay.parsing import from_json_records
from orchestration.declarations.sink import Column
from orchestration.spark.column_lineage import MOST_CHARACTERS, with_sources
from orchestration.spark.reading.data_source import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    Plan = Callable[[DataFrame, DataFrame], DataFrame]

pytestmark = pytest.mark.spark

STREAMS = {"lines", "prices"}


def read(session: SparkSession, stream: str, *, batch_time: str = "2026-01-01T00:00:00+00:00") -> DataFrame:
    """Return a stream's frame as a batch has it; nothing is read of it."""
    columns = {"lines": "value STRING, at TIMESTAMP, host STRING", "prices": "value STRING, price BIGINT"}
    options = {"pipeline": "p", "batch_time": batch_time, "stream": stream, "block_store": "/none", "block_keys": ""}
    return session.read.format(FORMAT).schema(columns[stream]).options(**options).load()


def columns_of(frame: DataFrame) -> tuple[Column, ...]:
    return tuple(Column(field.name, field.dataType.simpleString(), field.nullable) for field in frame.schema)


def lineage(frame: DataFrame) -> dict[str, set[str] | None]:
    """Return the sources of each column as `stream.column`; None: not known."""
    return {
        column.name: None if column.sources is None else {".".join(source) for source in column.sources}
        for column in with_sources(columns_of(frame), frame, STREAMS, {})
    }


def same(frames: Iterator[Any]) -> Iterator[Any]:
    yield from frames


def in_sql(statement: str) -> Plan:
    return lambda lines, prices: lines.sparkSession.sql(statement, lines=lines, prices=prices)


VALUE, AT, HOST, PRICE = {"lines.value"}, {"lines.at"}, {"lines.host"}, {"prices.price"}

KNOWN: dict[str, tuple[Plan, dict[str, set[str] | None]]] = {
    "a stream": (lambda lines, _: lines, {"value": VALUE, "at": AT, "host": HOST}),
    "aliases": (
        lambda lines, _: lines.select("at", F.col("value").alias("v")).withColumn("w", F.concat("v", F.col("at"))),
        {"at": AT, "v": VALUE, "w": VALUE | AT},
    ),
    "literals": (lambda lines, _: lines.select(F.lit(1).alias("one"), F.rand().alias("r")), {"one": set(), "r": set()}),
    "parsed JSON": (
        lambda lines, _: lines.select(F.from_json("value", "x INT, y STRING").alias("j"), "at").select("j.*", "at"),
        {"x": VALUE, "y": VALUE, "at": AT},
    ),
    "from_json_records": (
        lambda lines, _: from_json_records(lines, "x INT, y STRING"),
        {"x": VALUE, "y": VALUE, "at": AT, "host": HOST, "_corrupt": VALUE},
    ),
    "explode": (
        lambda lines, _: lines.select(F.posexplode(F.split("value", " ")), "at"),
        {"pos": VALUE, "col": VALUE, "at": AT},
    ),
    "a map of two columns": (
        lambda lines, _: lines.select(F.explode(F.create_map("value", "host")), "at"),
        {"key": None, "value": None, "at": AT},
    ),
    "fields of a struct": (
        lambda lines, _: lines.select(F.struct("value", "host").alias("s"), "at").select("s.host", "s", "at"),
        {"host": HOST, "s": VALUE | HOST, "at": AT},
    ),
    "a field of some struct": (
        lambda lines, _: lines.groupBy("at").agg(F.max(F.struct("value", "host")).alias("s")).select("s.host", "at"),
        {"host": None, "at": AT},
    ),
    "an item of an array": (
        lambda lines, _: lines.select(F.array("value", "host")[0].alias("v"), F.split("value", " ")[0].alias("w")),
        {"v": None, "w": VALUE},
    ),
    "a join": (
        lambda lines, prices: lines.join(prices, "value").select("value", "at", "price"),
        {"value": VALUE, "at": AT, "price": PRICE},
    ),
    "a full join": (
        lambda lines, prices: lines.join(prices, "value", "full").select("value"),
        {"value": VALUE | {"prices.value"}},
    ),
    "a self join": (
        lambda lines, _: (
            lines.alias("l")
            .join(lines.alias("r"), F.col("l.value") == F.col("r.host"))
            .select(F.col("l.at").alias("x"), F.col("r.host").alias("y"))
        ),
        {"x": AT, "y": HOST},
    ),
    "a join with other rows": (
        lambda lines, _: lines.join(lines.sparkSession.createDataFrame([("a", 1)], "value string, k int"), "value"),
        {"value": VALUE, "at": AT, "host": HOST, "k": None},
    ),
    "an aggregate": (
        lambda lines, _: lines.groupBy(F.upper("value").alias("v")).agg(F.max("at").alias("last"), F.count("*")),
        {"v": VALUE, "last": AT, "count(1)": set()},
    ),
    "a window function": (
        lambda lines, _: lines.select(F.row_number().over(Window.partitionBy("value").orderBy("at")).alias("r")),
        {"r": VALUE | AT},
    ),
    "a UDF": (
        lambda lines, _: lines.select(F.udf(lambda value, _: value)("value", "at").alias("u"), "host"),
        {"u": VALUE | AT, "host": HOST},
    ),
    "what leaves columns alone": (
        lambda lines, _: (
            lines.filter("host <> ''").dropDuplicates(["value"]).sample(0.5).orderBy("at").limit(3).repartition(2)
        ),
        {"value": VALUE, "at": AT, "host": HOST},
    ),
    "a query in an expression": (
        in_sql("SELECT at, (SELECT max(price) FROM {prices}) AS most FROM {lines}"),
        {"at": AT, "most": None},
    ),
}

UNKNOWN: dict[str, Plan] = {
    # Spark gives the union the ids of its first side.
    "a union": lambda lines, prices: lines.select("value").union(prices.select("value")),
    "an intersection": lambda lines, prices: lines.select("value").intersect(prices.select("value")),
    "mapInPandas": lambda lines, _: lines.mapInPandas(same, "value string"),
    "applyInPandas": lambda lines, _: lines.groupBy("value").applyInPandas(lambda frame: frame, lines.schema),
    "a rollup": lambda lines, _: lines.rollup("value").count(),
    "a CTE": in_sql("WITH c AS (SELECT value FROM {lines}) SELECT c.value FROM c JOIN c AS d USING (value)"),
    "other rows": lambda lines, _: lines.sparkSession.createDataFrame([("a",)], "value string"),
    "another format": lambda lines, _: lines.sparkSession.range(3).toDF("value"),
    "a large plan": lambda lines, _: lines.filter(F.col("value").isin(["x" * MOST_CHARACTERS])),
}


def test_the_plan_says_from_which_columns_each_column_is_computed(session: SparkSession) -> None:
    lines, prices = read(session, "lines"), read(session, "prices")
    found = {name: lineage(plan(lines, prices)) for name, (plan, _) in KNOWN.items()}
    assert found == {name: expected for name, (_, expected) in KNOWN.items()}


def test_what_the_plan_does_not_say_is_no_guess(session: SparkSession) -> None:
    lines, prices = read(session, "lines"), read(session, "prices")
    found = {name: set(lineage(plan(lines, prices)).values()) for name, plan in UNKNOWN.items()}
    assert found == {name: {None} for name in UNKNOWN}


def test_a_stream_that_is_no_input_is_no_source(session: SparkSession) -> None:
    frame = read(session, "lines").join(read(session, "prices"), "value").select("at", "price")
    found = with_sources(columns_of(frame), frame, {"lines"}, {})
    assert [column.sources for column in found] == [(("lines", "at"),), None]


def test_a_plan_is_read_once_while_batches_have_the_same(session: SparkSession) -> None:
    asked: list[str] = []

    class Plans:
        """A frame that notes what is asked of its plan."""

        def __init__(self, frame: DataFrame) -> None:
            self._jdf, self._plan = self, cast("Any", frame)._jdf.queryExecution().analyzed()

        def queryExecution(self) -> Plans:  # noqa: N802  Spark's name
            return self

        def analyzed(self) -> Plans:
            return self

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as Spark's
            asked.append(name)
            return getattr(self._plan, name)

    memory: dict[str, Any] = {}

    def read_plan(stream: str, hour: int, column: str = "value") -> int:
        frame = read(session, stream, batch_time=f"2026-01-01T{hour:02}:00:00+00:00")
        stamped = F.lit(f"2026-01-01 {hour:02}:00:00").cast("timestamp").alias("batch")
        each = F.transform(F.array(F.lit(1)), lambda x: x).alias("each")
        chosen = session.sql(f"SELECT {column} FROM {{frame}}", frame=frame).select("*", each, stamped)
        asked.clear()
        found = with_sources(columns_of(chosen), cast("Any", Plans(chosen)), STREAMS, memory)
        assert [column.sources for column in found] == [((stream, column),), (), ()]
        return asked.count("toJSON")

    assert [read_plan("lines", 1), read_plan("lines", 2), read_plan("lines", 3)] == [1, 0, 0]
    assert [read_plan("prices", 3), read_plan("lines", 3, "host"), read_plan("lines", 4)] == [1, 1, 0]
    for number in range(20):
        frame = read(session, "lines").select(F.lit(f"number {number}").alias("x"))
        with_sources(columns_of(frame), frame, STREAMS, memory)
    assert 0 < len(memory) < 10


def test_without_a_plan_the_columns_have_no_sources() -> None:
    columns = (Column("value", "string", nullable=True),)
    assert with_sources(columns, cast("Any", object()), STREAMS, {}) == columns, "as on Spark Connect"
