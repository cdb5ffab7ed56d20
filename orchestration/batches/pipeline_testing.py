"""Run a pipeline's outputs on given records, or none, without driver log, block store and sinks, in a local Spark.

Owns the conversion of given records to the DataFrames that a batch would read: columns, types and windows of a stream.
Never writes anything.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from orchestration.batches.stateful.state_function import checked_pair, keys_of
from orchestration.batches.stateful.state_testing import TestedState
from orchestration.declarations.batch import Batch
from orchestration.declarations.pipeline import (
    BATCH_PARAMETER,
    EPOCH,
    STATE_PARAMETER,
    Pipeline,
    Stream,
    Window,
)
from orchestration.declarations.sink import checked_result
from orchestration.spark.reading.record_numbers import BLOCK_NUMBER, RECORD_NUMBER
from receiver_runtime.block_store.frames.columns import arrow_schema, columns_of
from tracker_store.close_names import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.pipeline import Output
    from tracker_store.schema.batch_calendar import BatchCalendar

#: Lines (of a stream with one column of text), rows by column name, or an Arrow table.
Records: TypeAlias = "Sequence[str] | Sequence[Mapping[str, Any]] | pa.Table"

_TEXT = ("string", "large_string")
# The default batch time is the newest time up to this one at which every window of the pipeline ends.
_NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
# How far before it such a time is looked for.
_MOST_YEARS = 100


class Results(dict[str, pa.Table]):
    """Hold the result of each output, by name."""

    def __init__(self) -> None:
        super().__init__()
        #: The state after the batch of each output that has one, by name.
        self.states: dict[str, pa.Table] = {}


def run_batch(
    pipeline: Pipeline,
    records: Mapping[Stream | str, Records],
    *,
    earlier: Sequence[Mapping[Stream | str, Records]] = (),
    batch_time: datetime | None = None,
    outputs: Sequence[str] | None = None,
    states: Mapping[str, Sequence[Mapping[str, Any]] | pa.Table] | None = None,
    session: SparkSession | None = None,
) -> Results:
    """Run the pipeline's outputs on `records`; return each output's result, by name, as an Arrow table.

    Args:
        pipeline: the declared pipeline; it need not be applied.
        records: the records of each of its streams in the batch: ``{lines: ["a b", "b"]}``. Rows may omit columns.
        earlier: the same for earlier batches, one interval apart, the newest last, for windows.
        batch_time: the value of `batch.time`; outputs whose window doesn't slide at this time are left out. The default
            is a time at which all outputs are due.
        outputs: the names of the outputs to run; default: all.
        states: the state before the batch, by the name of its output: rows, or a table of an earlier call's
            `states`. The default is a state without keys.
        session: the Spark session; default: the active one, or a new local one.

    Raises:
        ValueError: a stream is missing or unknown, or its records have other columns.
        SinkError: an output's function returned no DataFrame, as it is in a batch.
    """
    streams = {stream.name: stream for stream in pipeline.streams}
    given = [_by_name(pipeline, streams, each) for each in (*earlier, records)]
    chosen = _chosen(pipeline, outputs)
    missing = sorted({stream.name for output in chosen for stream in output.streams} - given[-1].keys())
    if missing:
        raise ValueError(
            f"pipeline {pipeline.name!r} reads {', '.join(missing)}, of which no records are given: "
            f"give some, or none: {{{missing[0]}: []}}"
        )
    time = _time_of_all(pipeline) if batch_time is None else batch_time
    tables = {
        name: [_table(stream, each.get(name, [])) for each in given]
        for name, stream in streams.items()
        if name in given[-1]
    }
    batch = Batch(
        pipeline=pipeline.name,
        time=time,
        attempt=1,
        records=sum(batches[-1].num_rows for batches in tables.values()),
        _blocks={},
    )
    spark = session or local_session()
    results = Results()
    for output in chosen:
        if not output.is_due(time):
            continue
        state = None if output.state is None else TestedState(output, (states or {}).get(output.name, ()))
        results[output.name] = _result(
            output, batch, tables, _times(pipeline, time, len(given)), spark, state
        ).toArrow()
        if state is not None:
            state.release()
            results.states[output.name] = state.table()
    return results


def plan_of(output: Output, columns: Mapping[str, Sequence[tuple[str, str]]], session: SparkSession) -> DataFrame:
    """Call the output's function with empty frames; return its result, of which Spark has analysed the plan.

    `columns`: those of each stream that the output reads, as (name, Arrow type). Raises what the function raises, what
    Spark raises about the plan, and SinkError if the result is no DataFrame.
    """
    tables = {name: [arrow_schema(of_stream).empty_table()] for name, of_stream in columns.items()}
    time = _time_of_all(output.pipeline)
    batch = Batch(pipeline=output.pipeline.name, time=time, attempt=1, records=0, _blocks={})
    state = None if output.state is None else TestedState(output, ())
    result = _result(output, batch, tables, [time], session, state)
    # Spark Connect analyses when the columns are asked for.
    _ = result.schema
    if state is not None:
        state.release()
    return result


def _chosen(pipeline: Pipeline, names: Sequence[str] | None) -> list[Output]:
    if names is None:
        return list(pipeline.outputs.values())
    unknown = sorted(set(names) - pipeline.outputs.keys())
    if unknown:
        raise ValueError(
            f"pipeline {pipeline.name!r} has no output {unknown[0]!r}: "
            f"{did_you_mean(unknown[0], pipeline.outputs) or 'it has ' + ', '.join(pipeline.outputs)}"
        )
    return [output for name, output in pipeline.outputs.items() if name in names]


def _by_name(
    pipeline: Pipeline, streams: Mapping[str, Stream], given: Mapping[Stream | str, Records]
) -> dict[str, Records]:
    named = {entry.name if isinstance(entry, Stream) else entry: records for entry, records in given.items()}
    unknown = sorted(named.keys() - streams.keys())
    if unknown:
        raise ValueError(
            f"pipeline {pipeline.name!r} reads no stream {unknown[0]!r}: "
            f"{did_you_mean(unknown[0], streams) or 'it reads ' + (', '.join(streams) or 'none')}"
        )
    return named


def _times(pipeline: Pipeline, newest: datetime, count: int) -> list[datetime]:
    """Return the times of the newest batch and of those before it, each an interval later, the newest last."""
    times = [newest]
    for _ in range(count - 1):
        calendar = pipeline.calendar
        times.append(
            times[-1] - pipeline.interval
            if calendar is None
            else calendar.newest_up_to(times[-1] - timedelta(microseconds=1))
        )
    return times[::-1]


def _time_of_all(pipeline: Pipeline) -> datetime:
    if pipeline.calendar is not None:
        return _local_time_of_all(pipeline, pipeline.calendar)
    microsecond = timedelta(microseconds=1)
    every = math.lcm(*(output.slide // microsecond for output in pipeline.outputs.values())) * microsecond
    return _NEW_YEAR - (_NEW_YEAR - EPOCH) % every


def _local_time_of_all(pipeline: Pipeline, calendar: BatchCalendar) -> datetime:
    """Return the newest time at which all outputs are due; that of the longest slide, if there is none in a century."""
    slides = {output.calendar_slide or calendar.interval.text for output in pipeline.outputs.values()}
    longest = calendar.every(max(slides, key=lambda slide: calendar.every(slide).interval.nominal))
    first = time = longest.newest_up_to(_NEW_YEAR)
    while time.year > _NEW_YEAR.year - _MOST_YEARS:
        if all(calendar.every(slide).is_boundary(time) for slide in slides):
            return time
        time = longest.newest_up_to(time - timedelta(microseconds=1))
    return first


def _table(stream: Stream, records: Records) -> pa.Table:
    from orchestration.spark.reading.batch_reader import declared_columns  # noqa: PLC0415  the light parts load no SQLAlchemy

    columns = declared_columns(stream.source, stream.name, stream.records)
    schema = arrow_schema(columns)
    where = f"stream {stream.name!r} (columns {', '.join(f'{name}: {kind}' for name, kind in columns)})"
    table = _as_table(records, schema, columns, where)
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise ValueError(f"{where}: it has no column {unknown[0]!r}")
    arrays = []
    for field in schema:
        if field.name not in table.column_names:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        try:
            arrays.append(table[field.name].cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"{where}: column {field.name!r}: {error}") from error
    return pa.table(arrays, schema=schema)


def _as_table(records: Records, schema: pa.Schema, columns: Sequence[tuple[str, str]], where: str) -> pa.Table:
    if isinstance(records, pa.Table):
        return records
    rows = list(records)
    if all(isinstance(row, str) for row in rows):
        if not rows:
            return schema.empty_table()
        if len(columns) != 1 or columns[0][1] not in _TEXT:
            raise ValueError(f"{where}: lines are for a stream with one column of text; give rows, as {{name: value}}")
        return pa.table({columns[0][0]: rows})
    if not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"{where}: give lines (str), rows (dict) or an Arrow table, and not a mixture")
    names = {name for row in rows for name in row}
    unknown = sorted(names - set(schema.names))
    if unknown:
        raise ValueError(f"{where}: it has no column {unknown[0]!r}")
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def _result(
    output: Output,
    batch: Batch,
    tables: Mapping[str, Sequence[pa.Table]],
    times: Sequence[datetime],
    session: SparkSession,
    state: TestedState | None,
) -> DataFrame:
    """Call the output's function; `tables` has what each stream got in the batch of each of the `times`."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  the light parts load no Spark
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from orchestration.spark.reading.spark_types import spark_schema  # noqa: PLC0415  as above

    def frame(entry: Stream | Window) -> DataFrame:
        if not isinstance(entry, Window):
            return loaded(tables[entry.name][-1:])
        begin = entry.begin(batch.time)
        inside = [time for time in times if time > begin]
        batches = tables[entry.stream.name][-len(inside) :]
        if entry.new_column is None:
            return loaded(batches)
        from orchestration.spark.reading.new_records import marked  # noqa: PLC0415  as above

        seen = max(0, len(batches) - sum(time > _last_due(output, batch.time) for time in inside))
        nothing = [batches[0].slice(0, 0)]
        return marked(loaded(batches[seen:]), loaded(batches[:seen] or nothing), entry.new_column)

    def loaded(batches: Sequence[pa.Table], *, numbered: bool = False) -> DataFrame:
        table = pa.concat_tables(batches)
        if numbered:
            table = table.append_column(BLOCK_NUMBER, pa.repeat(pa.scalar(0, pa.int32()), table.num_rows))
            table = table.append_column(RECORD_NUMBER, pa.array(range(table.num_rows), pa.int64()))
        # The types that Spark has when it reads a stream: signed integers, times in microseconds.
        columns: Any = StructType.fromDDL(spark_schema(columns_of(table.schema)))
        schema = to_arrow_schema(columns, timezone="UTC")
        # In one piece: Spark 4.3 leaves out what comes after an empty chunk.
        return session.createDataFrame(table.cast(schema, safe=False).combine_chunks())

    where = f"output {output.name!r} of pipeline {output.pipeline.name!r}"
    extra: dict[str, Any] = {BATCH_PARAMETER: batch} if output.wants_batch else {}
    if output.event is not None:
        assert state is not None
        by_time = output.event.times
        frames = [
            loaded(tables[stream.name][-1:], numbered=True) if place in by_time else frame(entry)
            for place, (entry, stream) in enumerate(zip(output.inputs, output.streams, strict=True))
        ]
        return _event_result(output, frames, batch, state, extra)
    arguments: dict[str, Any] = {
        parameter: frame(entry) for parameter, entry in zip(output.parameters, output.inputs, strict=True)
    }
    if state is None:
        return checked_result(output.function(**arguments, **extra), where)
    keys = keys_of(output, list(arguments.values()))
    returned = output.function(**arguments, **extra, **{STATE_PARAMETER: state.before(session, keys, batch.time)})
    result, changes = checked_pair(returned, where)
    state.after(changes, batch.time)
    return result


def _event_result(
    output: Output, frames: Sequence[DataFrame], batch: Batch, state: TestedState, extra: Mapping[str, Any]
) -> DataFrame:
    from orchestration.batches.stateful.event_batch import EventBatch  # noqa: PLC0415  the light parts load no Spark

    assert output.event is not None
    event = EventBatch(output, frames, {place: ["test"] for place in output.event.times}, state.progress, batch.time)
    state.follow(event)
    computed = event.compute(state.before(frames[0].sparkSession, event.keys(), event.clock), extra)
    state.after(computed.changes, event.clock)
    return computed.result


def _last_due(output: Output, time: datetime) -> datetime:
    """Return when the output was due before `time`."""
    calendar = output.pipeline.calendar
    if calendar is None:
        return time - output.slide
    every = calendar if output.calendar_slide is None else calendar.every(output.calendar_slide)
    return every.newest_up_to(time - timedelta(microseconds=1))


def local_session() -> SparkSession:
    """Return the active Spark session, or a new local one."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  the light parts load no Spark

    from orchestration.declarations.settings import Settings  # noqa: PLC0415
    from orchestration.spark.session.session import spark_session  # noqa: PLC0415

    if (active := SparkSession.getActiveSession()) is not None:
        return active
    # Workers import a pipeline's functions from where this process does, such as a project's folder.
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109  as text
    return spark_session(Settings(), application="forebay.testing")
