"""Check that declarations are validated where they are made: an error names the thing, the value and the fix."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forebay import DeclarationError, ParquetSink, Pipeline, Stream
from forebay.sources import FileLines, FollowedFiles, Http, SocketText
from orchestration.declarations.modules import PipelineModuleError, load_pipelines
from receiver_runtime.sources.source_registry import parse_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from orchestration.declarations.pipeline import Output, Window
    from receiver_runtime.sources.source import Source

SOURCE = SocketText(host="127.0.0.1", port=9999)
SINK = ParquetSink("out")


def lines() -> Stream:
    return Stream("lines", SOURCE)


def test_a_pipeline_as_in_the_readme() -> None:
    stream = lines()
    pipeline = Pipeline("word_count", interval="10s")

    @pipeline.output(inputs=[stream], sink=SINK)
    def word_counts(lines: DataFrame) -> DataFrame:
        """Words."""
        return lines

    assert pipeline.interval == timedelta(seconds=10)
    assert pipeline.streams == (stream,)
    assert pipeline.outputs == {"word_counts": word_counts}
    assert word_counts.description == "Words."
    assert word_counts("anything") == "anything"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interval": "0s"}, "longer than 0"),
        ({"interval": "10 parsecs"}, "10 parsecs"),
        ({"interval": timedelta(0)}, "longer than 0"),
        ({"interval": "1s", "catch_up": "some"}, "each, merge"),
        ({"interval": "1s", "max_attempts": 0}, "max_attempts=0"),
        ({"interval": "1s", "start": "now"}, "earliest, latest"),
        ({"interval": "1s", "max_records_per_batch": 0}, "max_records_per_batch=0"),
        ({"interval": "1s", "retention": "-1h"}, "retention"),
        ({"interval": "1s", "backpressure_rate_estimator": "other"}, "backpressure_rate_estimator.*'pid'"),
    ],
)
def test_invalid_pipeline_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Pipeline("p", **arguments)


@pytest.mark.parametrize("name", ["", "two words", "9lives", "a-b", "a/b", "é"])
def test_names_must_be_valid_in_every_part(name: str) -> None:
    with pytest.raises(DeclarationError, match="letters, digits"):
        Pipeline(name, interval="1s")
    with pytest.raises(DeclarationError, match="letters, digits"):
        Stream(name, SOURCE)


def test_names_must_be_short_enough_for_file_names() -> None:
    Stream("a" * 120, SOURCE)
    pipeline = Pipeline("a" * 120, interval="1s")
    for declare in (
        lambda: Stream("a" * 121, SOURCE),
        lambda: Pipeline("a" * 121, interval="1s"),
        lambda: pipeline.output(inputs=[lines()], sink=SINK, name="a" * 121)(lambda frame: frame),
    ):
        with pytest.raises(DeclarationError, match=r"name 'a{20}'… has 121 letters: use at most 120"):
            declare()


def test_unknown_setting_suggests_the_closest_name() -> None:
    with pytest.raises(DeclarationError, match=r"block_intervall.*did you mean block_interval\?"):
        Stream("lines", SOURCE, block_intervall="1s")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [({"intervall": "5s"}, "interval"), ({"interval": "5s", "max_attempt": 1}, "max_attempts")],
)
def test_an_unknown_argument_suggests_the_closest_one(arguments: dict[str, Any], meant: str) -> None:
    with pytest.raises(DeclarationError, match=rf"no setting .*did you mean {meant}\?"):
        Pipeline("words", **arguments)


def test_a_settings_value_is_checked() -> None:
    with pytest.raises(DeclarationError, match="block_queue_size=0"):
        Stream("lines", SOURCE, block_queue_size=0)
    with pytest.raises(DeclarationError, match="receivers=0"):
        Stream("lines", SOURCE, receivers=0)


def test_two_outputs_with_one_name_are_refused() -> None:
    pipeline = Pipeline("p", interval="1s")
    pipeline.output(inputs=[lines()], sink=SINK, name="out")(lambda frame: frame)
    with pytest.raises(DeclarationError, match="'out' of pipeline 'p' is declared twice"):
        pipeline.output(inputs=[lines()], sink=SINK, name="out")(lambda frame: frame)


@pytest.mark.parametrize("name", ["batches", "batches_1m"])
def test_forebays_own_output_names_are_reserved(name: str) -> None:
    with pytest.raises(DeclarationError, match="Forebay's own"):
        Pipeline("p", interval="1s").output(inputs=[lines()], sink=SINK, name=name)(lambda frame: frame)


def test_parameters_must_fit_the_inputs() -> None:
    with pytest.raises(DeclarationError, match=r"declares 1 input.*takes \['left', 'right'\]"):
        Pipeline("p", interval="1s").output(inputs=[lines()], sink=SINK, name="out")(lambda left, right: left)


def test_batch_is_a_parameter_on_request() -> None:
    output = Pipeline("p", interval="1s").output(inputs=[lines()], sink=SINK, name="out")(
        lambda frame, batch: (frame, batch)
    )
    assert output.wants_batch
    assert output.parameters == ("frame",)


def test_an_output_needs_an_input() -> None:
    with pytest.raises(DeclarationError, match="no input"):
        Pipeline("p", interval="1s").output(inputs=[], sink=SINK, name="out")(lambda: None)


def test_two_streams_with_one_name_are_refused() -> None:
    pipeline = Pipeline("p", interval="1s")
    with pytest.raises(DeclarationError, match="two streams are named 'lines'"):
        pipeline.output(inputs=[lines(), lines()], sink=SINK, name="out")(lambda a, b: (a, b))
    assert pipeline.outputs == {}


def test_input_must_be_a_stream() -> None:
    with pytest.raises(DeclarationError, match="input 'lines' is no stream: give the Stream itself"):
        Pipeline("p", interval="1s").output(inputs=["lines"], sink=SINK, name="out")(  # type: ignore[list-item]
            lambda frame: frame
        )


def _error_of(function: Callable[[], object]) -> str:
    with pytest.raises(DeclarationError) as raised:
        function()
    return str(raised.value)


def test_an_error_names_the_line_of_the_declaration() -> None:
    """Check that the error names the file and line that the user wrote, wherever in Forebay it is found."""
    line = inspect.currentframe()
    assert line is not None
    assert _error_of(lambda: Pipeline("p", interval="0s")).endswith(f"({__file__}:{line.f_lineno})")
    assert _error_of(lambda: Stream("lines", SOURCE, block_queue_size=0)).endswith(f"({__file__}:{line.f_lineno})")
    pipeline = Pipeline("p", interval="1s")

    def declare() -> None:
        @pipeline.output(inputs=[lines()], sink=SINK)
        def first(one: DataFrame, two: DataFrame) -> None:
            """Take more inputs than declared."""

    number = inspect.getsourcelines(declare)[1] + 1
    assert _error_of(declare).endswith(f"({__file__}:{number})")


def test_a_windows_column_of_new_records_is_declared_and_has_a_name() -> None:
    stream = lines()
    assert stream.window("60s", new_column="is_new").declaration()["new_column"] == "is_new"
    with pytest.raises(DeclarationError, match="new_column='' is no name"):
        stream.window("60s", new_column="")


def test_a_window_is_declared_by_its_length_and_slide() -> None:
    stream = lines()
    pipeline = Pipeline("p", interval="10s")
    output = pipeline.output(inputs=[stream.window("60s", slide="20s")], sink=SINK, name="out")(lambda frame: frame)
    assert pipeline.streams == (stream,)
    assert pipeline.declaration()["outputs"]["out"]["inputs"] == [
        {"window": "lines", "length_ms": 60_000, "slide_ms": 20_000}
    ]
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert [output.is_due(noon + n * timedelta(seconds=10)) for n in range(4)] == [True, False, True, False]


def test_a_batch_of_an_earlier_interval_is_due_though_its_time_fits_the_present_one_no_more() -> None:
    """Check a batch that waited while the interval was changed: its blocks are in no other batch."""
    output = Pipeline("p", interval="1m").output(inputs=[lines()], sink=SINK, name="out")(lambda frame: frame)
    assert output.is_due(datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC))


@pytest.mark.parametrize(
    "inputs",
    [
        lambda stream: [stream, Stream("others", SOURCE).window("60s", slide="20s")],
        lambda stream: [stream.window("60s"), Stream("others", SOURCE).window("60s", slide="20s")],
        lambda stream: [stream.window("60s", slide="10s"), Stream("others", SOURCE).window("60s", slide="20s")],
    ],
)
def test_input_whose_every_other_batch_would_be_missed_is_refused(
    inputs: Callable[[Stream], list[Stream | Window]],
) -> None:
    declare = Pipeline("p", interval="10s").output(inputs=inputs(lines()), sink=SINK, name="out")
    with pytest.raises(DeclarationError, match=r'missed.*lines\.window\("20s", slide="20s"\)'):
        declare(lambda one, two: one)


@pytest.mark.parametrize(("length", "slide"), [("15s", None), ("20s", "15s")])
def test_a_window_must_fit_the_interval(length: str, slide: str | None) -> None:
    with pytest.raises(DeclarationError, match="no multiple of the interval"):
        Pipeline("p", interval="10s").output(inputs=[lines().window(length, slide=slide)], sink=SINK, name="out")(
            lambda frame: frame
        )


def module(directory: Path, text: str) -> str:
    path = directory / "declared.py"
    path.write_text(
        "from forebay import *\nfrom forebay.sources import SocketText\n"
        "lines = Stream('lines', SocketText(host='h', port=1))\n" + text,
        encoding="utf-8",
    )
    return str(path)


def test_a_module_gives_its_pipelines(tmp_path: Path) -> None:
    path = module(
        tmp_path,
        "p = Pipeline('p', interval='1s')\n"
        "p.output(inputs=[lines], sink=ParquetSink('o'), name='o')(lambda frame, limit=3: frame)",
    )
    [pipeline] = load_pipelines(path)
    assert pipeline.name == "p"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "declares no Pipeline"),
        ("p = Pipeline('p', interval='1s')", "'p'.*has no output"),
        ("\n\nPipeline('p', interval='333.3ms')", "interval='333.3ms' is no whole number of milliseconds"),
        ("\n\nPipeline('p', interval='1s', retention='40000d')", "'40000d' is longer than 36500 days"),
        ("\n\nPipeline('p', interval='0s')", r"longer than 0.*declared\.py:6\)"),
        # The value is not shown: it may be a secret in the wrong field.
        ("SocketText(host='127.0.0.1', port='a secret')", r"^module 'declared': SocketText: port: [^']*$"),
    ],
)
def test_an_error_in_a_module_names_the_line_or_the_thing(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PipelineModuleError, match=message):
        load_pipelines(module(tmp_path, text))


def test_missing_module_is_named() -> None:
    with pytest.raises(PipelineModuleError, match="no_such_module_at_all"):
        load_pipelines("no_such_module_at_all")


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: stream(source="tcp://host:1"), r"stream 'lines': source='tcp://host:1' is no source: give one, as"),
        (lambda: stream(source=SocketText), "is no source"),
        (lambda: output(sink="data/x"), r"output 'out' of pipeline 'p': sink='data/x' is no sink: .*'data/out'"),
        (lambda: output(sink=ParquetSink), "is no sink"),
        (lambda: output(inputs=lines()), r"has no input: name the streams that it reads, inputs=\[...\]"),
        (lambda: window(new_column=5), "new_column=5 is no name"),
    ],
)
def test_what_is_of_another_kind_is_named(declare: Callable[[], object], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        declare()


def output(**arguments: Any) -> Output:  # noqa: ANN401  what users may write
    pipeline = Pipeline("p", interval="10s")
    return pipeline.output(**{"inputs": [lines()], "sink": SINK, **arguments}, name="out")(lambda frame: frame)


def stream(**arguments: Any) -> Stream:  # noqa: ANN401  as above
    return Stream("lines", **arguments)


def window(**arguments: Any) -> Window:  # noqa: ANN401  as above
    return lines().window("60s", **arguments)


def test_a_star_import_has_the_kinds_of_packages() -> None:
    names: dict[str, object] = {}
    exec("from forebay import *\nfrom forebay.sources import *", names)
    assert {"Http", "Kafka", "Tls", "DeltaSink", "Pipeline"} <= names.keys()


@pytest.mark.parametrize("source", [Http(listen="127.0.0.1:8080"), FileLines(path="/a"), FollowedFiles(path="/a")])
def test_a_field_that_is_not_given_is_unknown_to_older_agents(source: Source) -> None:
    stored = Stream("a", source).declaration()["source"]
    assert not {"key_from", "multiline", "tls", "verify"} & stored.keys()
    assert parse_source(stored) == source
