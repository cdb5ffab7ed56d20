"""Test pipelines by local time as they are declared: what is stored, what is refused, and what stays as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from forebay import DeclarationError, ParquetSink, Pipeline, Stream, Window
from forebay.cli.commands.apply import shown_value
from forebay.sources import SocketText
from tracker_store.schema.declarations import PipelineDeclaration

if TYPE_CHECKING:
    from orchestration.declarations.pipeline import Window

BERLIN = "Europe/Berlin"
# Daylight saving time ends in Berlin at the end of this day's first three hours.
LONG = datetime(2025, 10, 26, tzinfo=ZoneInfo(BERLIN)).astimezone(UTC)


def lines(name: str = "lines") -> Stream:
    return Stream(name, SocketText(host="127.0.0.1", port=9999))


def windowed(pipeline: Pipeline, length: str, slide: str | None = None) -> Pipeline:
    sink = ParquetSink(Path("/out"))
    pipeline.output(inputs=[lines().window(length, slide=slide)], sink=sink, name="out")(lambda lines: lines)
    return pipeline


@pytest.mark.parametrize(
    ("interval", "timezone", "stored"),
    [
        ("1 day", BERLIN, {"interval": "1 day", "timezone": BERLIN}),
        ("1d", BERLIN, {"interval": "1 day", "timezone": BERLIN}),
        (timedelta(hours=24), BERLIN, {"interval": "1 day", "timezone": BERLIN}),
        ("15m", BERLIN, {"interval": "15m", "timezone": BERLIN}),
        ("500ms", BERLIN, {"interval": "500ms", "timezone": BERLIN}),
        ("2 weeks on sunday", BERLIN, {"interval": "2 weeks on sunday", "timezone": BERLIN}),
        ("1 year", BERLIN, {"interval": "12 months", "timezone": BERLIN}),
        ("1 week on monday", None, {"interval": "1 week on monday", "timezone": "UTC"}),
        ("1 month", None, {"interval": "1 month", "timezone": "UTC"}),
    ],
)
def test_a_calendar_is_stored_in_one_form(
    interval: str | timedelta, timezone: str | None, stored: dict[str, str]
) -> None:
    declaration = Pipeline("words", interval=interval, timezone=timezone).declaration()
    assert declaration["calendar"] == stored
    calendar = PipelineDeclaration.of(declaration).calendar
    assert calendar is not None
    assert calendar.declaration() == stored


@pytest.mark.parametrize(
    ("interval", "milliseconds"), [("10s", 10_000), ("1d", 86_400_000), ("1 day", 86_400_000), ("1 week", 604_800_000)]
)
def test_a_pipeline_without_a_zone_is_declared_as_before(interval: str, milliseconds: int) -> None:
    pipeline = windowed(Pipeline("words", interval=interval), interval)
    declaration = pipeline.declaration()
    assert "calendar" not in declaration
    assert declaration["interval_ms"] == milliseconds
    assert declaration["outputs"]["out"] == {
        "inputs": [{"window": "lines", "length_ms": milliseconds, "slide_ms": None}],
        "sink": {"kind": "parquet", "path": "/out"},
    }


@pytest.mark.parametrize(
    ("interval", "timezone", "says"),
    [
        ("7h", BERLIN, "interval: 7h does not divide a day"),
        ("36h", BERLIN, "no whole number of days"),
        ("7d", BERLIN, "'1 week on monday'"),
        ("1 week", BERLIN, "'1 week on monday'"),
        ("1 day", "Europe/Berlim", "timezone: 'Europe/Berlim' is no time zone that this host knows: did you mean"),
        ("1 day", "CEST", "timezone: 'CEST' is no time zone"),
        ("1 day", "", "timezone: '' is no time zone"),
        ("1 day", 1, "timezone: 1 is no name of a time zone"),
        ("1 week on someday", None, "interval: '1 week on someday': 'someday' is no day: did you mean"),
    ],
)
def test_what_can_not_work_is_refused(interval: str, timezone: str | None, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        Pipeline("words", interval=interval, timezone=timezone)


@pytest.mark.parametrize(
    ("interval", "length", "slide", "says"),
    [
        ("1h", "90m", None, "the length, 90m, is no multiple of the interval, 1h"),
        ("1 day", "36h", None, "no whole number of days"),
        ("1 day", "6h", None, "the length, 6h, is no multiple of the interval, 1 day"),
        ("2 days", "1 month", None, "the length, 1 month, is no multiple of the interval, 2 days"),
        ("1h", "1 day", "7d", "'1 week on monday'"),
        ("1 week on monday", "2 weeks", "2 weeks on sunday", "the slide, 2 weeks on sunday, is no multiple"),
    ],
)
def test_a_window_must_fit_the_calendar(interval: str, length: str, slide: str | None, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        windowed(Pipeline("words", interval=interval, timezone=BERLIN), length, slide)


@pytest.mark.parametrize(("length", "slide"), [("1 month", None), ("1 day", "1 week on monday")])
def test_what_only_a_calendar_counts_needs_one(length: str, slide: str | None) -> None:
    with pytest.raises(DeclarationError, match='need a calendar: declare timezone="UTC"'):
        windowed(Pipeline("words", interval="1h"), length, slide)


def test_different_slides_in_one_output_are_refused() -> None:
    pipeline = Pipeline("words", interval="1h", timezone=BERLIN)
    inputs: list[Stream | Window] = [lines(), lines("others").window("1 day", slide="1 day")]
    with pytest.raises(DeclarationError, match="every 1 day and every 1h"):
        pipeline.output(inputs=inputs, sink=ParquetSink("/out"), name="out")(lambda one, two: one)


def test_a_window_of_the_calendar_is_stored_shown_and_kept_for_as_long_as_it_may_be() -> None:
    pipeline = windowed(Pipeline("words", interval="1h", timezone=BERLIN), "1 month", "1 week on monday")
    [stored] = pipeline.declaration()["outputs"]["out"]["inputs"]
    assert (stored["length"], stored["slide"], stored["slide_ms"]) == ("1 month", "1 week on monday", None)
    assert shown_value(stored) == 'lines.window("1 month", slide="1 week on monday")'
    assert timedelta(milliseconds=stored["length_ms"]) > timedelta(days=31, hours=1)
    assert pipeline.kept_for > timedelta(days=38)
    [window] = pipeline.outputs["out"].windows
    assert "1 month" in repr(window)


def test_one_window_serves_pipelines_with_and_without_a_zone() -> None:
    window = lines().window("1 day", slide="1 day")
    local, plain = Pipeline("local", interval="1h", timezone=BERLIN), Pipeline("plain", interval="1h")
    outputs = [
        pipeline.output(inputs=[window], sink=ParquetSink(f"/{pipeline.name}"), name="out")(lambda lines: lines)
        for pipeline in (local, plain)
    ]
    assert [output.is_due(LONG) for output in outputs] == [True, False]
    later = LONG + timedelta(hours=25)
    assert [output.is_due(later) for output in outputs] == [True, False]
    assert [later - output.windows[0].begin(later) for output in outputs] == [timedelta(hours=25), timedelta(hours=24)]


def test_an_output_is_due_where_its_declaration_says_so_too() -> None:
    pipeline = windowed(Pipeline("words", interval="1h", timezone=BERLIN), "1 day", "1 day")
    declared = PipelineDeclaration.of(pipeline.declaration())
    for hours in range(30):
        time = LONG + timedelta(hours=hours)
        decided = declared.decided_times(time)
        assert decided is not None
        assert decided.slides == {"1 day": hours in (0, 25)}
        due = declared.outputs["out"].is_due(time, declared.calendar, decided)
        assert due == pipeline.outputs["out"].is_due(time) == (hours in (0, 25))
    [window] = declared.window_times(LONG + timedelta(hours=25), LONG + timedelta(hours=24))
    assert (window.due, window.before, window.start) == (True, LONG, LONG)
    assert window.before_start == LONG - timedelta(hours=24)
