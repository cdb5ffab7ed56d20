"""Make the overview's picture of what flows where: boxes for sources, streams, pipelines and outputs, and arrows.

Pure: it takes what status reads, and says what stands in each box and at each arrow. It knows no coordinates
(`flow_layout` does) and escapes nothing (the templates do).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING

from orchestration.status_page import addresses, shown
from tracker_store.receivers.receivers import DEGRADED, is_degraded
from tracker_store.schema.states import PipelineState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tracker_store.batches.readers import ReaderLag
    from tracker_store.reports.flow import FlowOutput, FlowStream, StreamBatch
    from tracker_store.reports.status import PipelineStatus, ReceiverStatus, StreamLag
    from tracker_store.reports.status_page import PageBatch

_NO_LAG = timedelta(0)
# The worst first.
_RECEIVER_STATES = (ReceiverState.FAILED, ReceiverState.INACTIVE, ReceiverState.PAUSED, ReceiverState.SCHEDULED)


class Layer(IntEnum):
    """Number the columns of the picture, in the direction of the flow."""

    SOURCE = 0
    STREAM = 1
    PIPELINE = 2
    OUTPUT = 3


@dataclass(frozen=True, slots=True)
class Box:
    """Show a thing by its name, its state in a word or two, and its figures."""

    layer: Layer
    name: str
    href: str
    state: str
    tone: str
    figures: str = ""
    is_reader: bool = False  # it stands among the pipelines

    @property
    def said(self) -> str:
        """Return it as a sentence, for titles and screen readers."""
        kind = "Reader" if self.is_reader else self.layer.name.capitalize()
        return ": ".join(filter(None, (f"{kind} {self.name}", self.second)))

    @property
    def second(self) -> str:
        """Return what stands below the name."""
        return " · ".join(filter(None, (self.state, self.figures)))


@dataclass(frozen=True, slots=True)
class Arrow:
    """Lead from one box to another, by their numbers in the picture."""

    source: int
    target: int
    tone: str
    label: str
    said: str


@dataclass(slots=True)
class Flow:
    """Hold the boxes and arrows."""

    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)

    def add(self, box: Box) -> int:
        """Add a box and return its number."""
        self.boxes.append(box)
        return len(self.boxes) - 1

    def link(self, source: int, target: int, *parts: str, tone: str = "plain") -> None:
        """Add an arrow with what is said of it; empty parts are left out."""
        label = " · ".join(filter(None, parts))
        names = f"{self.boxes[source].name} to {self.boxes[target].name}"
        self.arrows.append(Arrow(source, target, tone, label, f"{names}: {label}" if label else names))

    @property
    def said(self) -> str:
        """Return what the picture has, for screen readers."""
        counts = [sum(box.layer is layer and not box.is_reader for box in self.boxes) for layer in Layer]
        readers = sum(box.is_reader for box in self.boxes)
        said = "Sources: {}, streams: {}, pipelines: {}, outputs: {}".format(*counts)
        return f"{said}{f', readers: {readers}' if readers else ''}. Each is a link to its page."


@dataclass(frozen=True, slots=True)
class FlowRows:
    """Hold what the picture is made of, as status reads it; `newest` are finished batches, the oldest first."""

    now: datetime
    streams: Sequence[FlowStream]
    receivers: Sequence[ReceiverStatus]
    pipelines: Sequence[PipelineStatus]
    lag: Sequence[StreamLag]
    readers: Sequence[ReaderLag]
    outputs: Sequence[FlowOutput]
    newest: Mapping[int, Sequence[PageBatch]]
    by_stream: Sequence[StreamBatch]


def flow(rows: FlowRows, *, most: int) -> Flow:
    """Draw the streams that the pipelines read and those that nothing reads, at most `most` streams."""
    picture = Flow()
    lags = {(row.pipeline, row.stream): row for row in rows.lag}
    drawn = {row.pipeline for row in rows.pipelines}
    read = {stream for pipeline, stream in lags if pipeline in drawn}
    receivers = defaultdict[str, list["ReceiverStatus"]](list)
    for row in rows.receivers:
        receivers[row.stream].append(row)
    chosen = [row for row in rows.streams if row.stream in read]
    chosen += [row for row in rows.streams if not row.is_read][: max(0, most - len(chosen))]
    streams = {row.stream: _add_stream(picture, row, receivers[row.stream]) for row in chosen}
    rates = _rates(rows)
    for pipeline in rows.pipelines:
        number = _add_pipeline(picture, pipeline, rows.newest.get(pipeline.pipeline_id, ()))
        for (name, stream), lag in lags.items():
            if name == pipeline.pipeline and stream in streams:
                rate = rates.get((pipeline.pipeline_id, stream), 0.0 if rows.newest.get(pipeline.pipeline_id) else None)
                waits = "" if lag.lag is None else f"lag {shown.span(lag.lag)}"
                late = lag.lag is not None and lag.lag > 3 * pipeline.batch_interval
                picture.link(streams[stream], number, _per_second(rate), waits, tone="warn" if late else "plain")
        for output in rows.outputs:
            if output.pipeline_id == pipeline.pipeline_id:
                _add_output(picture, number, pipeline, output, rows)
    for reader in rows.readers[:most]:
        if reader.stream in streams:
            _add_reader(picture, streams[reader.stream], reader, rows.now)
    return picture


def _add_stream(picture: Flow, row: FlowStream, receivers: Sequence[ReceiverStatus]) -> int:
    href = addresses.stream(row.stream)
    active = sum(each.state == ReceiverState.ACTIVE for each in receivers)
    degraded = sum(is_degraded(each.reason) for each in receivers)
    state, tone = "ACTIVE", shown.tone("ACTIVE")
    worst = next((one for one in _RECEIVER_STATES if any(each.state == one for each in receivers)), None)
    if worst is ReceiverState.FAILED or degraded:
        state, tone = (DEGRADED if worst is not ReceiverState.FAILED else worst.value), shown.tone("FAILED")
    elif worst is not None:
        state, tone = worst.value, shown.tone(worst)
    elif not receivers:
        state, tone = "no receivers", "warn"
    unread = _unread(receivers)
    source = picture.add(Box(Layer.SOURCE, row.source or "source", href, unread, "plain"))
    figures = f"{active:,} of {len(receivers):,} active" if receivers else ""
    stream = picture.add(Box(Layer.STREAM, row.stream, href, state, tone, figures))
    rates = [each.records_per_second for each in receivers if each.records_per_second is not None]
    lag = max((each.source_lag for each in receivers if each.source_lag is not None), default=_NO_LAG)
    behind = f"{shown.span(lag)} behind" if lag > _NO_LAG else ""
    picture.link(source, stream, _per_second(sum(rates) if rates else None), behind, tone=tone if degraded else "plain")
    return stream


def _add_pipeline(picture: Flow, row: PipelineStatus, newest: Sequence[PageBatch]) -> int:
    state = "HALTED" if row.halted_by is not None else row.state
    tone = shown.tone(state)
    if row.quarantined_batches:
        state, tone = (state if row.halted_by is not None else "QUARANTINED"), shown.tone("QUARANTINED")
    elif row.state == PipelineState.RUNNING:
        tone = "good"
    took = next((batch.processing_time for batch in reversed(newest) if batch.processing_time is not None), None)
    interval = row.calendar or shown.span(row.batch_interval)
    figures = f"every {interval}"
    if took is not None:
        figures = f"{shown.span(took)} of {interval}"
    return picture.add(Box(Layer.PIPELINE, row.pipeline, addresses.pipeline(row.pipeline), state, tone, figures))


def _add_reader(picture: Flow, stream: int, row: ReaderLag, now: datetime) -> None:
    waits = f"{row.waiting_records:,} waiting" if row.waiting_records else "all is read"
    href = addresses.stream(row.stream)
    number = picture.add(Box(Layer.PIPELINE, row.reader, href, "reader", "plain", waits, is_reader=True))
    oldest = row.oldest_added_at
    picture.link(stream, number, "" if oldest is None else f"lag {shown.since(oldest, now)}")


def _add_output(picture: Flow, number: int, pipeline: PipelineStatus, row: FlowOutput, rows: FlowRows) -> None:
    failed = row.failed_at is not None
    state = "FAILED" if failed else row.sink
    written = "nothing yet" if row.committed_at is None else f"{shown.since(row.committed_at, rows.now)} ago"
    tone = shown.tone("FAILED") if failed else "plain" if row.committed_at is None else "good"
    href = addresses.pipeline(pipeline.pipeline)
    target = picture.add(Box(Layer.OUTPUT, row.output, href, state, tone, written))
    label = ""
    if row.rows is not None and row.spans is not None:
        label = f"{shown.rate(row.rows / (row.spans + pipeline.batch_interval).total_seconds())} rows/s"
    picture.link(number, target, label, tone="bad" if failed else "plain")


def _unread(receivers: Sequence[ReceiverStatus]) -> str:
    """Return what the source has that is not read, by unit; empty: no receiver has said."""
    sums: dict[str, int] = {}
    for row in receivers:
        if row.unread is not None and row.unread_unit is not None:
            sums[row.unread_unit] = sums.get(row.unread_unit, 0) + row.unread
    texts = [shown.size(sums[unit]) if unit == "bytes" else f"{sums[unit]:,} {unit}" for unit in sums if sums[unit]]
    return f"{', '.join(texts)} unread" if texts else "all is read" if sums else ""


def _rates(rows: FlowRows) -> dict[tuple[int, str], float]:
    """Return the records per second that each pipeline's newest finished batch has of each stream, if it has some."""
    intervals = {row.pipeline_id: row.batch_interval for row in rows.pipelines}
    newest = {(pipeline_id, batches[-1].batch_time) for pipeline_id, batches in rows.newest.items() if batches}
    return {
        (row.pipeline_id, row.stream): row.records
        / (row.batch_time - row.oldest_time + intervals[row.pipeline_id]).total_seconds()
        for row in rows.by_stream
        if row.pipeline_id in intervals and (row.pipeline_id, row.batch_time) in newest
    }


def _per_second(rate: float | None) -> str:
    return "" if rate is None else f"{shown.rate(rate)}/s"
