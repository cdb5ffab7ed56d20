"""Test how `forebay apply` shows a difference: as people write declarations, and whole at 80 columns."""

from __future__ import annotations

import io

import pytest

from forebay import ParquetSink, Pipeline, Stream
from forebay.cli.commands.apply import print_changes, shown_value
from forebay.cli.terminal.console import Console
from forebay.sources import SocketText
from orchestration.declarations.apply import SENDERS_PATH, Change, changed_keys


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "True"),
        (60_000, "60000"),
        ([], "none"),
        (["lines", "others"], "lines\nothers"),
        ({"window": "lines", "length_ms": 60_000, "slide_ms": None}, 'lines.window("60s")'),
        ({"window": "lines", "length_ms": 1_500, "slide_ms": 500}, 'lines.window("1.5s", slide="0.5s")'),
        ({"window": "a", "length_ms": 1_000, "slide_ms": None, "new_column": "n"}, 'a.window("1s", new_column="n")'),
        ([{"path": "a", "parts": [1, 2]}], "path: a, parts: 1\n2"),
    ],
)
def test_values_are_shown_without_the_form_that_they_are_stored_in(value: object, shown: str) -> None:
    assert shown_value(value) == shown


def declared(*, windowed: bool) -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="10s")
    read = lines.window("1m", slide="20s") if windowed else lines
    pipeline.output(inputs=[read], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    return pipeline


def test_a_stream_that_becomes_a_window_is_shown_as_in_the_module_and_no_word_is_broken() -> None:
    details = changed_keys(declared(windowed=False).declaration(), declared(windowed=True).declaration())
    out = io.StringIO()
    print_changes(Console(file=out, width=80), [Change("pipeline", "words", "change", details)])
    shown = " ".join(out.getvalue().replace("\N{NO-BREAK SPACE}", " ").split())
    assert "outputs.counts.inputs" in shown
    assert 'lines.window("60s", slide="20s")' in shown
    assert "{" not in shown


def test_the_new_path_of_a_renamed_stream_is_said() -> None:
    out = io.StringIO()
    details = (("name", "clicks", "clix"), (SENDERS_PATH, "/v1/clicks", "/v1/clix"))
    print_changes(Console(file=out, width=80), [Change("stream", "clix", "rename", details)])
    assert "its senders must use /v1/clix. /v1/clicks gets 404" in " ".join(out.getvalue().split())
