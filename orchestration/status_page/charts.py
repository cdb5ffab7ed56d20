"""Make the series of the status page's charts from batches: a timeline and a histogram for each of four measures (O02).

Pure. A batch without a value (one without records ran nowhere) is a gap in its timeline, and not in its histogram.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.status_page import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from tracker_store.reports.status_page import PageBatch

BINS = 10


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
