"""Read pipelines and streams as `forebay apply` wrote them; no other Python module reads that JSON.

What is not written has its default. The SQL function `end_attempt` reads `outputs` and `on_failure`
itself, in its transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from tracker_store.schema.batch_calendar import BatchCalendar, DecidedTimes, span_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


#: Among the fields of a stream's source, what `Stream(records=…)` declares. A version without typed streams refuses a
#: source with a field that it does not know; it would not see one beside the source, and store records as they come.
RECORDS_FIELD = "stream.records"


@dataclass(frozen=True, slots=True)
class StreamDeclaration:
    """Hold the declaration of a stream; `receivers` is a number, or "per_host". `records`: how they are parsed."""

    source: Mapping[str, Any]
    settings: Mapping[str, Any]
    receivers: int | str
    records: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, declaration: Mapping[str, Any]) -> Self:
        """Read a stream's column `declaration`."""
        source = dict(declaration["source"])
        records = source.pop(RECORDS_FIELD, None)
        return cls(source, declaration["settings"], declaration.get("receivers", 1), records)


@dataclass(frozen=True, slots=True)
class WindowDeclaration:
    """Hold a window of a stream, given by its name, that an output reads; `slide` is the output's.

    By a calendar, `length` is the longest that it may be; `span` and `calendar_slide` are what is counted.
    """

    stream: str
    length: timedelta
    slide: timedelta | None
    span: str | None = None
    calendar_slide: str | None = None

    def begin(self, calendar: BatchCalendar, batch_time: datetime) -> datetime:
        """Return the instant after which the window begins that ends at `batch_time`."""
        if self.span is None:
            return batch_time - self.length
        return calendar.start_of_window(batch_time, span_of(self.span))


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """Hold when a window of a stream begins that ends with a batch, and the one before it that its output was due for.

    `before` is None if that is the last batch, whichever it is.
    """

    stream: str
    due: bool
    before: datetime | None
    start: datetime
    before_start: datetime

    def to_row(self) -> dict[str, Any]:
        """Return what `allocate_blocks_to_batch` reads."""
        return {
            "stream": self.stream,
            "due": self.due,
            "before": None if self.before is None else self.before.isoformat(),
            "start": self.start.isoformat(),
            "before_start": self.before_start.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class OutputDeclaration:
    """Hold the declaration of an output; it is computed in every batch if it has neither slide.

    `calendar_slide` is the one of a pipeline with a calendar.
    """

    sink: Mapping[str, Any]
    slide: timedelta | None
    windows: tuple[WindowDeclaration, ...] = ()
    calendar_slide: str | None = None
    has_state: bool = False

    def is_due(
        self, batch_time: datetime, calendar: BatchCalendar | None = None, decided: DecidedTimes | None = None
    ) -> bool:
        """Return whether the output is computed in this batch; `decided`: what its row says of it."""
        if self.calendar_slide is not None and calendar is not None:
            return slide_ends(self.calendar_slide, batch_time, calendar, decided)
        return self.slide is None or not (batch_time - _EPOCH) % self.slide


def slide_ends(slide: str, batch_time: datetime, calendar: BatchCalendar, decided: DecidedTimes | None) -> bool:
    """Return whether a slide ends at a batch's time: as decided with it, or by the calendar if declared later."""
    said = None if decided is None else decided.slides.get(slide)
    return calendar.every(slide).is_boundary(batch_time) if said is None else said


@dataclass(frozen=True, slots=True)
class PipelineDeclaration:
    """Hold the declaration of a pipeline; `settings` are as written.

    A batch without records runs if `runs_empty_batches`, or if the content of one of `deciding_windows` has changed.
    """

    streams: tuple[str, ...]
    outputs: Mapping[str, OutputDeclaration]
    settings: Mapping[str, Any]
    max_attempts: int
    merges: bool
    runs_empty_batches: bool
    max_records_per_batch: int | None
    max_bytes_per_batch: int | None
    deciding_windows: tuple[WindowDeclaration, ...] = ()
    calendar: BatchCalendar | None = None

    @classmethod
    def of(cls, declaration: Mapping[str, Any]) -> Self:
        """Read a pipeline's column `declaration`."""
        outputs = {name: _output(output) for name, output in (declaration.get("outputs") or {}).items()}
        windows = dict.fromkeys(window for output in outputs.values() for window in output.windows)
        chosen = declaration.get("settings", {}).get("run_empty_batches")
        return cls(
            streams=tuple(declaration.get("streams", ())),
            outputs=outputs,
            settings=declaration.get("settings", {}),
            max_attempts=declaration.get("max_attempts", 1),
            merges=declaration.get("catch_up") == "merge",
            runs_empty_batches=bool(chosen),
            max_records_per_batch=declaration.get("max_records_per_batch"),
            max_bytes_per_batch=declaration.get("max_bytes_per_batch"),
            deciding_windows=tuple(windows) if chosen is None else (),
            calendar=BatchCalendar.of(declaration.get("calendar")),
        )

    def decided_times(self, batch_time: datetime) -> DecidedTimes | None:
        """Return what the calendar decides with a batch, for its row; None: there is no calendar."""
        if self.calendar is None:
            return None
        windows = {window for output in self.outputs.values() for window in output.windows}
        slides = {window.calendar_slide for window in windows if window.calendar_slide is not None}
        return DecidedTimes(
            {slide: self.calendar.every(slide).is_boundary(batch_time) for slide in sorted(slides)},
            {
                window.span: window.begin(self.calendar, batch_time)
                for window in sorted(windows, key=lambda one: one.span or "")
                if window.span is not None
            },
        )

    def window_times(self, batch_time: datetime, last: datetime) -> list[WindowTimes]:
        """Return the times of the windows that decide whether an empty batch runs; `last` is the last batch's time."""
        calendar = self.calendar
        if calendar is None:
            return []
        found = []
        for window in self.deciding_windows:
            before, due = None, True
            if window.calendar_slide is not None:
                slide = calendar.every(window.calendar_slide)
                due = slide.is_boundary(batch_time)
                before = slide.newest_up_to(batch_time - timedelta(microseconds=1))
            found.append(
                WindowTimes(
                    window.stream,
                    due,
                    before,
                    window.begin(calendar, batch_time),
                    window.begin(calendar, last if before is None else before),
                )
            )
        return found


def _output(declaration: Mapping[str, Any]) -> OutputDeclaration:
    windows = [entry for entry in declaration.get("inputs", ()) if isinstance(entry, dict)]
    slides = [entry["slide_ms"] for entry in windows if entry["slide_ms"]]
    slide = timedelta(milliseconds=max(slides)) if slides else None
    # All inputs of an output have one slide.
    calendar_slide = next((entry["slide"] for entry in windows if entry.get("slide")), None)
    return OutputDeclaration(
        declaration.get("sink", {}),
        slide,
        tuple(
            WindowDeclaration(
                entry["window"],
                timedelta(milliseconds=entry["length_ms"]),
                slide,
                entry.get("length"),
                calendar_slide,
            )
            for entry in windows
        ),
        calendar_slide,
        has_state=bool(declaration.get("state")),
    )
