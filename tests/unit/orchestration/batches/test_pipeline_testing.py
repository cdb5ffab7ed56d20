"""Check `forebay.testing.run_batch`: it refuses arguments that don't fit before it starts Spark."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from forebay.testing import Records, run_batch
from orchestration.batches.pipeline_testing import _table, _time_of_all
from orchestration.declarations.pipeline import EPOCH

SINK = ParquetSink("never")
lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
others = Stream("others", SocketText(host="127.0.0.1", port=9998))


def pipeline() -> Pipeline:
    made = Pipeline("p", interval="10s")
    made.output(inputs=[lines], sink=SINK, name="one")(lambda frame: frame)
    made.output(inputs=[others.window("60s", slide="40s")], sink=SINK, name="two")(lambda frame: frame)
    made.output(inputs=[others.window("60s", slide="30s")], sink=SINK, name="three")(lambda frame: frame)
    return made


@pytest.mark.parametrize(
    ("records", "outputs", "message"),
    [
        ({}, None, "reads lines, others, of which no records are given: give some, or none: {lines: \\[\\]}"),
        ({lines: ["a"]}, None, "reads others, of which"),
        ({"line": ["a"]}, None, "reads no stream 'line': did you mean lines?"),
        ({lines: ["a"]}, ["for"], "has no output 'for': it has one, two, three"),
        ({lines: [{"text": "a"}]}, ["one"], r"columns value: string\): it has no column 'text'"),
        ({lines: ["a", {"value": "b"}]}, ["one"], "not a mixture"),
        ({lines: [{"value": 1}]}, ["one"], "stream 'lines'.*Expected bytes, got a 'int'"),
        ({lines: pa.table({"text": ["a"]})}, ["one"], "it has no column 'text'"),
        ({lines: pa.table({"value": [[1]]})}, ["one"], "stream 'lines'.*list"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    records: dict[Stream | str, Records], outputs: list[str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_batch(pipeline(), records, outputs=outputs)


@pytest.mark.parametrize(
    "records", [[{"value": "a"}, {}], pa.table({"value": pa.array(["a", None], pa.large_string())})]
)
def test_records_get_the_streams_columns(records: Records) -> None:
    assert _table(lines, records) == pa.table({"value": ["a", None]})


def test_all_outputs_are_due_unless_a_time_is_given() -> None:
    time = _time_of_all(pipeline())
    assert (time - EPOCH) % timedelta(seconds=120) == timedelta(0)
    assert all(output.is_due(time) for output in pipeline().outputs.values())
