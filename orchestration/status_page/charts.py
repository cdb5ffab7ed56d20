"""Make the series of the status page's charts from batches: a timeline and a histogram for each of four measures (O02).

The overview's small timelines have a bar for each of a few batches: its delay, or what it has of a stream.
Pure. A batch without a value (one without records ran nowhere) is a gap in its timeline, and not in its histogram.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.status_page import shown
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from tracker_store.reports.status_page import PageBatch

BINS = 10
#: Batches of a small timeline.
SPARKED = 24
_SPARK_HEIGHT = 22  # pixels, for the largest value
_LEAST_HEIGHT = 1.5  # of a bar whose value is not null


@dataclass(frozen=True, slots=True)
class Bar:
    """Describe a histogram's bar: how many batches are in this span of values; `share` of the tallest, from 0 to 1."""

    label: str
    batches: int
    share: float


@dataclass(frozen=True, slots=True)
class Chart:
    """One measure. `data` is JSON: [[seconds since 1970], [value or null]]; `line` is the value of a level line."""

    key: str
    title: str
    unit: str
    data: str
    line: float | None
    line_label: str
    bars: Sequence[Bar]
    average: str
    median: str
    largest: str


@dataclass(frozen=True, slots=True)
class Spark:
    """Hold a small timeline: the heights and tones of its bars, None where there is no value, and its words."""

    bars: Sequence[tuple[float, str] | None]
    said: str


def pipeline_spark(batches: Sequence[PageBatch], interval: timedelta) -> Spark | None:
    """Show the total delays of a pipeline's newest batches; None without a batch that ran."""
    delays = [None if batch.total_delay is None else batch.total_delay.total_seconds() for batch in batches]
    known = [delay for delay in delays if delay is not None]
    failed = sum(batch.state == BatchState.QUARANTINED for batch in batches)
    if not known and not failed:
        return None

    def tone(batch: PageBatch) -> str:
        late = batch.processing_time is not None and batch.processing_time > interval
        return "bad" if batch.state == BatchState.QUARANTINED else "warn" if late else "plain"

    spans = [f"{shown.span(min(known))} to {shown.span(max(known))}"] if known else []
    said = ", ".join([*spans, *([f"{failed} quarantined"] if failed else [])])
    return Spark(
        _bars(delays, [tone(batch) for batch in batches]),
        f"Total delay of the newest {len(batches)} batches: {said}",
    )


def stream_spark(rates: Sequence[float], pipeline: str) -> Spark | None:
    """Show the records per second of a stream in the newest batches of a pipeline; None without a record."""
    if not any(rates):
        return None
    said = f"Records per second in the newest {len(rates)} batches of {pipeline}: at most {shown.rate(max(rates))}"
    return Spark(_bars(rates, ["plain"] * len(rates)), said)


def _bars(values: Sequence[float | None], tones: Sequence[str]) -> list[tuple[float, str] | None]:
    """Give each value its bar; what is bad is seen without one too."""
    largest = max((value for value in values if value is not None), default=0.0) or 1.0
    return [
        (float(_SPARK_HEIGHT), tone)
        if tone == "bad"
        else None
        if value is None
        else (round(max(_LEAST_HEIGHT, _SPARK_HEIGHT * value / largest), 1), tone)
        for value, tone in zip(values, tones, strict=True)
    ]


def input_rate(batch: PageBatch, interval: timedelta) -> float:
    """Return the records per second of the whole time that a batch stands for: missed intervals may be merged in it."""
    return batch.records / (batch.batch_time - batch.oldest_time + interval).total_seconds()


def charts(batches: Sequence[PageBatch], interval: timedelta) -> list[Chart]:
    """Return the four charts of batches, which are in order of time."""

    def of(key: str, title: str, value: Callable[[PageBatch], timedelta | None], *, line: bool = False) -> Chart:
        values = [None if (found := value(batch)) is None else found.total_seconds() for batch in batches]
        return _chart(key, title, "s", batches, values, shown.span, interval if line else None)

    return [
        _chart(
            "input-rate",
            "Input rate",
            "records/s",
            batches,
            [input_rate(batch, interval) for batch in batches],
            lambda value: f"{shown.rate(value)}/s",
            None,
        ),
        of("scheduling-delay", "Scheduling delay", lambda batch: batch.scheduling_delay),
        of("processing-time", "Processing time", lambda batch: batch.processing_time, line=True),
        of("total-delay", "Total delay", lambda batch: batch.total_delay),
    ]


def _chart(
    key: str,
    title: str,
    unit: str,
    batches: Sequence[PageBatch],
    values: Sequence[float | None],
    text: Callable[[float], str],
    line: timedelta | None,
) -> Chart:
    known = [value for value in values if value is not None]
    return Chart(
        key,
        title,
        unit,
        json.dumps([[batch.batch_time.timestamp() for batch in batches], list(values)], separators=(",", ":")),
        None if line is None else line.total_seconds(),
        "" if line is None else f"interval {shown.span(line)}",
        histogram(known, text),
        text(statistics.fmean(known)) if known else shown.NOTHING,
        text(statistics.median(known)) if known else shown.NOTHING,
        text(max(known)) if known else shown.NOTHING,
    )


def histogram(values: Sequence[float], text: Callable[[float], str]) -> list[Bar]:
    """Count values in at most BINS spans of equal width from 0 on, in a round step; none without values."""
    if not values:
        return []
    step = _round_step(max(values) / BINS)
    counts = [0] * max(1, math.floor(max(0.0, *values) / step) + 1)
    for value in values:
        counts[max(0, math.floor(value / step))] += 1
    tallest = max(counts)
    return [
        Bar(f"{text(number * step)} to {text((number + 1) * step)}", batches, batches / tallest)
        for number, batches in enumerate(counts)
    ]


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is more than `least`."""
    if least <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power > least)
