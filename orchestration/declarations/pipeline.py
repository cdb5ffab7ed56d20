"""Declares streams, pipelines and outputs: checked when declared, written by `forebay apply`.

Importing a pipeline writes nothing and loads neither Dagster nor Spark. A mistake is an error at the line that
makes it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, get_args

from pydantic import ValidationError

from orchestration.declarations.calendar_intervals import declared_calendar, fixed_duration, span_of_text
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.pipeline_settings import PipelineSettings
from orchestration.declarations.sink import Sink
from orchestration.declarations.state.declared import State
from orchestration.declarations.state.event_time import (
    EventJoin,
    EventOutput,
    EventState,
    EventTime,
    EventWindow,
    SessionWindow,
    event_output,
)
from receiver_runtime.sources.fields.units import MOST_DAYS, parse_duration
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.records.declared import Records
from receiver_runtime.sources.source import Source
from tracker_store.close_names import close_name, did_you_mean
from tracker_store.schema.batch_calendar import Unit, checked_interval, of_duration
from tracker_store.schema.declarations import RECORDS_FIELD, slide_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import dagster as dg
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from tracker_store.schema.batch_calendar import BatchCalendar, DecidedTimes, Span

CatchUp = Literal["each", "merge"]
Start = Literal["earliest", "latest"]
PerHost = Literal["per_host"]
PER_HOST: PerHost = "per_host"

# Output names that Forebay's own assets use (docs/how-to/dagster.md).
RESERVED_OUTPUTS = frozenset({"batches", "batches_1m"})
BATCH_PARAMETER = "batch"
STATE_PARAMETER = "state"
# Batch times are multiples of the interval from here.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Arguments = ParamSpec("_Arguments")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A folder has the names of a pipeline and an output together, and a file system takes 255 bytes.
_MOST_LETTERS = 120


def _checked_name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        message = f"{kind} name {name!r}: use letters, digits and _, and begin with a letter"
        raise DeclarationError(message)
    if len(name) > _MOST_LETTERS:
        message = f"{kind} name {name[:20]!r}… has {len(name)} letters: use at most {_MOST_LETTERS}"
        raise DeclarationError(message)
    return name


def _duration(value: str | timedelta, where: str, *, least: timedelta = timedelta(milliseconds=1)) -> timedelta:
    if isinstance(value, timedelta):
        duration = value
    else:
        try:
            duration = timedelta(seconds=parse_duration(value))
        except ValueError as error:
            message = f"{where}: {error}"
            raise DeclarationError(message) from error
    if duration > timedelta(days=MOST_DAYS):
        message = f"{where}={value!r} is longer than {MOST_DAYS} days: give less"
        raise DeclarationError(message)
    if duration % timedelta(milliseconds=1):
        message = f"{where}={value!r} is no whole number of milliseconds, in which the driver log keeps it: round it"
        raise DeclarationError(message)
    if duration < least:
        message = f"{where}={value!r} must be longer than 0" if least else f"{where}={value!r} must not be negative"
        raise DeclarationError(message)
    return duration


def _span(value: object, where: str) -> Span | None:
    """Return what a value counts in days, weeks or months; None: it is another duration."""
    try:
        return span_of_text(value)
    except ValueError as error:
        message = f"{where}: {error}"
        raise DeclarationError(message) from error


def _span_or_duration(
    value: str | timedelta, where: str, *, least: timedelta = timedelta(milliseconds=1)
) -> tuple[Span | None, timedelta]:
    """Return a value's span, if it has one, and its duration, which is that of usual days and months then."""
    span = _span(value, where)
    return span, _duration(value, where, least=least) if span is None else span.nominal


def _milliseconds(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))


def stored_source(source: Source, records: Records | None) -> dict[str, Any]:
    """Return a source as `forebay apply` writes it, with what its records are if they are parsed.

    A field that is not given, and is None then, is left out: an agent of a version before that field takes the rest.
    """
    fields = type(source).model_fields
    absent = {name for name, field in fields.items() if field.default is None and getattr(source, name) is None}
    stored: dict[str, Any] = source.model_dump(mode="json", exclude=absent)
    return stored if records is None else {**stored, RECORDS_FIELD: records.model_dump(mode="json")}


class Stream:
    """Declare a named input: one source, read by one or several receivers, independent of any pipeline."""

    def __init__(
        self,
        name: str,
        source: Source,
        *,
        records: Records | None = None,
        receivers: int | PerHost = 1,
        retention: str | timedelta = "7d",
        shared_address: bool = False,
        renamed_from: str | None = None,
        **settings: object,
    ) -> None:
        """Declare a stream.

        Args:
            name: at most 120 letters, digits and _.
            source: where the records come from, such as `SocketText(...)`.
            records: what each record is, as `Json("item STRING, pieces BIGINT")`: its receivers parse it once, into
                these columns. By default records are kept as they came.
            receivers: how many receivers read it at the same time; "per_host": one on each host with an agent.
            retention: how long its blocks are kept while no pipeline reads it.
            shared_address: for a source that listens: its senders use an address that is not the host's own, such as a
                load balancer's. Then its receivers may run on any host, and may be moved to another.
            renamed_from: the name under which it was applied before. It keeps its receivers, positions and records;
                leave it out once it is applied.
            settings: any field of `ReceiverSettings`, such as `block_interval="200ms"`, `receiver_max_rate=1000`.

        Raises:
            DeclarationError: a value can't work; the message names the setting and the value, and says how to fix it.
        """
        self.name = _checked_name("stream", name)
        if not isinstance(source, Source):
            message = f"stream {name!r}: source={source!r} is no source: give one, as SocketText(host=…, port=…)"
            raise DeclarationError(message)
        self.renamed_from = renamed_from
        self.source = source
        self.records = records
        self._check_records()
        if receivers != PER_HOST and (not isinstance(receivers, int) or receivers < 1):
            message = f'stream {name!r}: receivers={receivers!r} must be at least 1, or "per_host"'
            raise DeclarationError(message)
        if receivers != 1 and source.one_receiver is not None:
            message = f"stream {name!r}: receivers={receivers!r}: {source.one_receiver}"
            raise DeclarationError(message)
        self.receivers: int | PerHost = receivers
        if shared_address and not source.is_listener:
            message = f"stream {name!r}: shared_address=True is for a source that listens: leave it out"
            raise DeclarationError(message)
        self.shared_address = shared_address
        self.retention = _duration(retention, f"stream {name!r}: retention")
        try:
            self.settings = ReceiverSettings.model_validate(settings)
        except ValidationError as error:
            message = f"stream {name!r}: " + "; ".join(_sentence(ReceiverSettings, detail) for detail in error.errors())
            raise DeclarationError(message) from error

    def _check_records(self) -> None:
        if self.records is None:
            return
        if not isinstance(self.records, Records):
            message = f"stream {self.name!r}: records={self.records!r}: give a kind of records, as Json('item STRING')"
            raise DeclarationError(message)
        if self.source.columns and not self.source.record_column:
            message = (
                f"stream {self.name!r}: records=: {self.source.kind} has no column to parse: {self.source.no_record}"
            )
            raise DeclarationError(message)
        try:
            self.records.block_columns(self.source.columns, self.source.record_column)
        except ValueError as error:
            message = f"stream {self.name!r}: records: {error}"
            raise DeclarationError(message) from error

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        return {
            "source": stored_source(self.source, self.records),
            "receivers": self.receivers,
            # Whether its receivers belong to the host at whose address they listen.
            "listens": self.source.is_listener and not self.shared_address,
            # Only where it is set, so that a stream that was declared before is not a changed one.
            **({"shared_address": True} if self.shared_address else {}),
            "retention_ms": _milliseconds(self.retention),
            "settings": self.settings.to_row(),
        }

    def window(
        self, length: str | timedelta, *, slide: str | timedelta | None = None, new_column: str | None = None
    ) -> Window:
        """Read the stream's blocks of the last `length` by batch time, every `slide` (default: the batch interval).

        In a pipeline with a time zone, days and months are its calendar's: `"1 day"`, `"1 month"`, and as a slide also
        `"1 week on monday"`.

        `new_column` adds a BOOLEAN column of this name: whether the output sees the record for the first time. A join
        of windows that keeps only rows with a new record has each pair once.

        Raises:
            DeclarationError: a duration can't work. The pipeline checks whether it fits the interval.
        """
        where = f"window of stream {self.name!r}"
        if new_column is not None and not (isinstance(new_column, str) and new_column):
            message = f"{where}: new_column={new_column!r} is no name: give the column one, or leave it out"
            raise DeclarationError(message)
        length_span, duration = _span_or_duration(length, f"{where}: length")
        slide_span, pace = (None, None) if slide is None else _span_or_duration(slide, f"{where}: slide")
        return Window(self, duration, pace, new_column, length_span=length_span, slide_span=slide_span)

    def by_event_time(
        self,
        column: str,
        *,
        lateness: str | timedelta,
        idle: str | timedelta = "5m",
        ahead: str | timedelta = "1d",
    ) -> EventTime:
        """Read the stream by a time that its records have, for `window=` or `join=` of an output.

        Args:
            column: the column of TIMESTAMP, or an expression in Spark's SQL, as `"try_to_timestamp(value)"`.
            lateness: how far a record may be behind the newest one of its source. Later ones are too late once all of
                their windows are final: they are counted, and in the result of `late=`.
            idle: a receiver, or a partition of Kafka, without a record for this long, by batch time, is not waited for.
            ahead: a time that is further ahead of the batch time is taken for wrong: such a record is too late, as one
                without a time is. It does not move the watermark.

        Raises:
            DeclarationError: a duration can't work.
        """
        return EventTime(self, column, lateness=lateness, idle=idle, ahead=ahead)

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"


class Window:
    """Declare an input that reaches back over several batches. Made by `Stream.window`.

    It is declared so that retention includes its length: clean-up would delete the blocks of a window that only a
    function's code asked for.
    """

    def __init__(
        self,
        stream: Stream,
        length: timedelta,
        slide: timedelta | None,
        new_column: str | None = None,
        *,
        length_span: Span | None = None,
        slide_span: Span | None = None,
        calendar: BatchCalendar | None = None,
    ) -> None:
        self.stream = stream
        #: With a calendar, the longest that it may be.
        self.length = length
        self.slide = slide
        self.new_column = new_column
        self.length_span = length_span
        self.slide_span = slide_span
        self.calendar = calendar

    def in_calendar(self, calendar: BatchCalendar) -> Window:
        """Return the window as a pipeline with this calendar reads it. Raises ValueError for what it can't count."""
        length = self.length_span or of_duration(self.length)
        slide = None if self.slide is None else checked_interval(self.slide_span or of_duration(self.slide))
        for name, span in (("length", length), ("slide", slide)):
            if span is not None and not span.is_multiple_of(calendar.interval):
                raise ValueError(f"the {name}, {span.text}, is no multiple of the interval, {calendar.interval.text}")
        return Window(
            self.stream,
            length.longest,
            None if slide is None else slide.longest,
            self.new_column,
            length_span=length,
            slide_span=slide,
            calendar=calendar,
        )

    @property
    def needs_calendar(self) -> bool:
        """Return whether it counts in what only a calendar has: months, or weeks that begin on a day."""
        return any(span is not None and fixed_duration(span) is None for span in (self.length_span, self.slide_span))

    def begin(self, batch_time: datetime, decided: DecidedTimes | None = None) -> datetime:
        """Return the instant after which the window begins that ends at `batch_time`; `decided`: what its row says."""
        if self.calendar is None or self.length_span is None:
            return batch_time - self.length
        said = None if decided is None else decided.starts.get(self.length_span.text)
        return self.calendar.start_of_window(batch_time, self.length_span) if said is None else said

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        if self.calendar is not None and self.length_span is not None:
            is_time = self.length_span.unit is Unit.TIME
            return {
                "window": self.stream.name,
                "length_ms": _milliseconds(self.length),
                "slide_ms": None,
                **({} if is_time else {"length": self.length_span.text}),
                **({} if self.slide_span is None else {"slide": self.slide_span.text}),
                **({} if self.new_column is None else {"new_column": self.new_column}),
            }
        return {
            "window": self.stream.name,
            "length_ms": _milliseconds(self.length),
            "slide_ms": None if self.slide is None else _milliseconds(self.slide),
            **({} if self.new_column is None else {"new_column": self.new_column}),
        }

    def __repr__(self) -> str:
        length = self.length if self.length_span is None else self.length_span.text
        return f"Window({self.stream.name!r}, {length})"


def _sentence(settings: type[BaseModel], detail: ErrorDetails) -> str:
    setting = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        hint = did_you_mean(setting, settings.model_fields) or f"use one of {', '.join(settings.model_fields)}"
        return f"there is no setting {setting!r}: {hint}"
    return f"{setting}={detail['input']!r}: {detail['msg'].removeprefix('Value error, ')}"


class Output:
    """Hold a function from batch inputs to a result, and the sink that keeps it. Made by `Pipeline.output`."""

    def __init__(
        self,
        pipeline: Pipeline,
        function: Callable[..., Any],
        inputs: Sequence[Stream | Window],
        sink: Sink,
        name: str,
        state: State | None = None,
        event: EventOutput | None = None,
        late_of: str | None = None,
    ) -> None:
        """Check that `function` takes one parameter per input, in their order, `state` if it has one, and `batch`.

        Of a join by event time, the two inputs are one parameter.
        """
        self.pipeline = pipeline
        self.function = function
        self.inputs = tuple(inputs)
        self.sink = sink
        self.name = name
        self.event = event
        #: The output whose late records it has, by name.
        self.late_of = late_of
        self.state = state if event is None else EventState(event.kind, [*event.times.values()], event.state)
        self.description = inspect.getdoc(function)
        parameters = inspect.signature(function).parameters
        self.wants_batch = BATCH_PARAMETER in parameters
        if state is not None and STATE_PARAMETER not in parameters:
            message = (
                f"output {name!r} of pipeline {pipeline.name!r} has a state, and its function takes {[*parameters]}: "
                "add a parameter `state`"
            )
            raise DeclarationError(message)
        if event is not None and hasattr(function, "bind"):
            message = (
                f"output {name!r} of pipeline {pipeline.name!r}: a function of one key knows no windows: write one of "
                "DataFrames, or leave out window= and by_event_time"
            )
            raise DeclarationError(message)
        if state is not None and hasattr(function, "bind"):
            function.bind(state)
        extra = {BATCH_PARAMETER, *(() if state is None else (STATE_PARAMETER,))}
        # Ignore a parameter that has a default: the user may set it as they like.
        expected = [
            parameter.name
            for parameter in parameters.values()
            if parameter.name not in extra
            and parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        joins = event is not None and isinstance(event.kind, EventJoin)
        if len(expected) != len(self.inputs) - joins:
            message = (
                f"output {name!r} of pipeline {pipeline.name!r} declares {len(self.inputs)} input(s) "
                f"{[stream.name for stream in self.streams]}, but its function takes {expected}: "
                "one parameter per input, in their order (and `batch`, if it is wanted)"
                + (", and one for the pairs of the two that are joined" if joins else "")
            )
            raise DeclarationError(message)
        # Of a join, both sides are in the first one.
        self.parameters = (*expected[:1] * joins, *expected)
        # What this process knows of its plans (``orchestration.spark.column_lineage``).
        self.column_sources: dict[str, Sequence[tuple[tuple[str, str], ...] | None]] = {}

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Return the stream of each input, in order."""
        return tuple(entry.stream if isinstance(entry, Window) else entry for entry in self.inputs)

    @property
    def windows(self) -> tuple[Window, ...]:
        """Return the inputs that are windows."""
        return tuple(entry for entry in self.inputs if isinstance(entry, Window))

    @property
    def slide(self) -> timedelta:
        """Return how often the output is computed: at multiples of this."""
        return max([self.pipeline.interval, *(window.slide for window in self.windows if window.slide)])

    def is_due(self, batch_time: datetime, decided: DecidedTimes | None = None) -> bool:
        """Return whether the output is computed in the batch of `batch_time`; `decided`: what its row says.

        Only its windows' slide decides: the interval may have changed since the batch was made, and skipping the output
        would lose the batch's blocks, which no other batch has.
        """
        if self.pipeline.calendar is not None:
            slide = self.calendar_slide
            return slide is None or slide_ends(slide, batch_time, self.pipeline.calendar, decided)
        return self.own_slide is None or (batch_time - EPOCH) % self.own_slide == timedelta(0)

    @property
    def own_slide(self) -> timedelta | None:
        """Return the slide that its windows declare; None: it is computed in every batch."""
        return max((window.slide for window in self.windows if window.slide is not None), default=None)

    @property
    def calendar_slide(self) -> str | None:
        """Return the slide of its windows by the pipeline's calendar; None: it is computed in every batch."""
        spans = [window.slide_span for window in self.windows if window.calendar is not None]
        return next((span.text for span in spans if span is not None), None)

    @property
    def asset_key(self) -> dg.AssetKey:
        """Return the key of the output's asset, for `deps=[...]` downstream. Loads Dagster."""
        import dagster as dg  # noqa: PLC0415  only a call for the key loads Dagster

        return dg.AssetKey([self.pipeline.name, self.name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the user's own function
        """Call the function itself, for tests."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Output({self.pipeline.name}.{self.name})"


def late_records(records: Any) -> Any:  # noqa: ANN401  Spark's DataFrame, which is not loaded here
    """Return the records that are too late, with the watermark that they came after."""
    return records


def _kind(
    where: str, window: EventWindow | SessionWindow | None, join: EventJoin | None
) -> EventWindow | SessionWindow | EventJoin | None:
    if window is not None and join is not None:
        message = f"{where}: window= and join= are two outputs: declare each"
        raise DeclarationError(message)
    for given, kinds in ((window, (EventWindow, SessionWindow)), (join, (EventJoin,))):
        if given is not None and not isinstance(given, kinds):
            names = " or ".join(f"{kind.__name__}(…)" for kind in kinds)
            message = f"{where}: {given!r}: give {names}"
            raise DeclarationError(message)
    return window if window is not None else join


def _names_close_arguments(declare: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Name the argument that was meant by one that does not exist, before Python says that it is missing."""
    own = [name for name in inspect.signature(declare).parameters if name not in ("self", "settings")]

    @functools.wraps(declare)
    def checked(*arguments: _Arguments.args, **settings: _Arguments.kwargs) -> None:
        for name in settings.keys() - {*own, *PipelineSettings.model_fields}:
            if close_name(name, own) not in settings and (hint := did_you_mean(name, own)):
                message = f"a pipeline has no setting {name!r}: {hint}"
                raise DeclarationError(message)
        declare(*arguments, **settings)

    return checked


class Pipeline:
    """Make batches at multiples of an interval from the blocks of its streams, with one or more outputs."""

    @_names_close_arguments
    def __init__(
        self,
        name: str,
        *,
        interval: str | timedelta,
        timezone: str | None = None,
        retention: str | timedelta = "24h",
        start: Start = "earliest",
        catch_up: CatchUp = "each",
        max_attempts: int = 3,
        max_records_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        **settings: object,
    ) -> None:
        """Declare a pipeline.

        Args:
            name: at most 120 letters, digits and _.
            interval: the batch interval; batch times are its multiples by the database's clock. Also `"1 day"`,
                `"1 week on monday"`, `"1 month"`.
            timezone: an IANA name, as `"Europe/Berlin"`: batch times are cut by its wall clock, so that a day has 23
                or 25 hours when it has, and so are windows, and Dagster's partitions and a `ParquetSink`'s folders.
            retention: how long after its batch time a batch's blocks are kept, to run it again.
            start: where a new pipeline begins: with the "earliest" block that is retained, or after the "latest".
            catch_up: behind schedule, make "each" missed batch, or "merge" them into one at the newest boundary.
            max_attempts: how often a batch may fail because of its data or code before it is quarantined. Attempts
                that are lost with their process, host or Spark count in `max_lost_attempts` (a setting).
            max_records_per_batch: the most records that a batch takes, except that it takes at least one block of each
                receiver that has any; the rest waits for the next batch.
            max_bytes_per_batch: the same, in bytes as stored.
            settings: any field of `PipelineSettings`, such as `backpressure_enabled=True`.

        Raises:
            DeclarationError: a value can't work.
        """
        self.name = _checked_name("pipeline", name)
        span, self.interval = _span_or_duration(interval, f"pipeline {name!r}: interval")
        try:
            self.calendar = declared_calendar(span, self.interval, timezone)
        except ValueError as error:
            what = "timezone" if timezone is not None and "time zone" in str(error) else "interval"
            message = f"pipeline {name!r}: {what}: {error}"
            raise DeclarationError(message) from error
        self.timezone = timezone
        self.retention = _duration(retention, f"pipeline {name!r}: retention", least=timedelta(0))
        if start not in get_args(Start):
            message = f"pipeline {name!r}: start={start!r} must be one of {', '.join(get_args(Start))}"
            raise DeclarationError(message)
        self.start: Start = start
        if catch_up not in get_args(CatchUp):
            message = f"pipeline {name!r}: catch_up={catch_up!r} must be one of {', '.join(get_args(CatchUp))}"
            raise DeclarationError(message)
        self.catch_up: CatchUp = catch_up
        if max_attempts < 1:
            message = f"pipeline {name!r}: max_attempts={max_attempts} must be at least 1"
            raise DeclarationError(message)
        self.max_attempts = max_attempts
        for limit, value in (
            ("max_records_per_batch", max_records_per_batch),
            ("max_bytes_per_batch", max_bytes_per_batch),
        ):
            if value is not None and value < 1:
                message = f"pipeline {name!r}: {limit}={value} must be at least 1 (None: no limit)"
                raise DeclarationError(message)
        self.max_records_per_batch = max_records_per_batch
        self.max_bytes_per_batch = max_bytes_per_batch
        try:
            self.settings = PipelineSettings.model_validate(settings)
        except ValidationError as error:
            message = f"pipeline {name!r}: " + "; ".join(
                _sentence(PipelineSettings, detail) for detail in error.errors()
            )
            raise DeclarationError(message) from error
        self.outputs: dict[str, Output] = {}
        # Spark configuration of its sessions from build_definitions; overrides the settings'.
        self.spark_configuration: Mapping[str, str] = {}
        # Version of the modules that this process has loaded, from build_definitions; commits record it.
        self.code_version: str | None = None
        # The Dagster resource of a user's own class that build_definitions was given: a later call without one uses it.
        self.spark_resource: object | None = None

    @property
    def kept_for(self) -> timedelta:
        """Return how long after its batch time a block may still be read: by a replay, or by the longest window.

        A slide longer, what left a window still says whether its content has changed.
        """
        windows = [
            window.length + (window.slide or timedelta(0))
            for output in self.outputs.values()
            for window in output.windows
        ]
        return max([self.retention, *windows])

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Return the streams that any output reads, each once, in the order of declaration."""
        found: dict[str, Stream] = {}
        for output in self.outputs.values():
            for stream in output.streams:
                if found.setdefault(stream.name, stream) is not stream:
                    message = f"pipeline {self.name!r}: two streams are named {stream.name!r}; rename one"
                    raise DeclarationError(message)
        return tuple(found.values())

    def output(
        self,
        *,
        inputs: Sequence[Stream | Window | EventTime],
        sink: Sink,
        name: str | None = None,
        state: State | None = None,
        window: EventWindow | SessionWindow | None = None,
        join: EventJoin | None = None,
        late: Sink | None = None,
    ) -> Callable[[Callable[..., Any]], Output]:
        """Make the decorated function an output: DataFrames of `inputs` in, a DataFrame for `sink` out.

        Args:
            inputs: the streams, and windows of them, that the function gets, in the order of its parameters.
            sink: keeps the result.
            name: of the output; default: the function's.
            state: one more DataFrame, `state`, goes in, and two come out: the result, and the changed state.
            window: of an input `STREAM.by_event_time(…)`: the function gets the records of each window that has a new
                one, with `window_start` and `window_end`. A sink with mode="merge" has the window's rows replaced; any
                other gets each window once, when it is final.
            join: of two inputs by event time: the function gets one DataFrame of pairs, with a column for each stream.
            late: keeps the records that are too late for `window` or `join`, as an output NAME_late.

        Raises:
            DeclarationError: no input, a name that is taken or reserved, parameters that don't fit.
        """
        # One that is not in a list is refused below.
        listed = () if isinstance(inputs, Stream | Window | EventTime) else tuple(inputs or ())
        times = {place: entry for place, entry in enumerate(listed) if isinstance(entry, EventTime)}
        plain = [entry.stream if isinstance(entry, EventTime) else entry for entry in listed]

        def declare(function: Callable[..., Any]) -> Output:
            output_name = _checked_name("output", name or function.__name__)
            where = f"output {output_name!r} of pipeline {self.name!r}"
            if output_name in self.outputs:
                message = f"{where} is declared twice: give one of them another name"
                raise DeclarationError(message)
            if output_name in RESERVED_OUTPUTS:
                message = f"{where}: the name is Forebay's own ({', '.join(sorted(RESERVED_OUTPUTS))}); choose another"
                raise DeclarationError(message)
            entries = self._checked_inputs(where, plain)
            if not isinstance(sink, Sink):
                message = f"{where}: sink={sink!r} is no sink: give one, as ParquetSink('data/{output_name}')"
                raise DeclarationError(message)
            self._check_state(where, state, has_event_time=bool(times or window or join))
            event = None
            if times or window is not None or join is not None:
                event = event_output(where, times, _kind(where, window, join), state, sink)
            elif late is not None:
                message = f"{where}: late=: only outputs by event time have late records: leave it out"
                raise DeclarationError(message)
            output = Output(self, function, self._in_calendar(where, entries), sink, output_name, state, event)
            self._check_windows(where, output)
            sink.in_timezone(self.timezone)
            self.outputs[output_name] = output
            try:
                _ = self.streams
            except DeclarationError:
                del self.outputs[output_name]
                raise
            if late is not None:
                self._declare_late(output, late)
            return output

        return declare

    def _checked_inputs(self, where: str, inputs: Sequence[object]) -> list[Stream | Window]:
        if not inputs:
            message = f"{where} has no input: name the streams that it reads, inputs=[...]"
            raise DeclarationError(message)
        found: list[Stream | Window] = []
        for entry in inputs:
            if not isinstance(entry, Stream | Window):
                message = (
                    f"{where}: input {entry!r} is no stream: give the Stream itself (or its window), as declared, "
                    "and not its name"
                )
                raise DeclarationError(message)
            found.append(entry)
        return found

    def _declare_late(self, output: Output, sink: Sink) -> None:
        """Declare the output of the records that are too late for another one. It has a watermark of its own."""
        assert output.event is not None
        kind, own = copy.copy(output.event.kind), output.event.state
        kind.on_failure = kind.on_failure if own is None else own.on_failure
        event = dataclasses.replace(output.event, kind=kind, state=None, updates=False, only_late=True)
        inputs = [output.inputs[place] for place in event.times]
        name = _checked_name("output", f"{output.name}_late")
        if name in self.outputs:
            message = f"output {output.name!r} of pipeline {self.name!r}: late=: there is an output {name!r}: rename it"
            raise DeclarationError(message)
        sink.in_timezone(self.timezone)
        event = dataclasses.replace(event, times=dict(enumerate(event.times.values())))
        self.outputs[name] = Output(self, late_records, inputs, sink, name, None, event, output.name)

    def _check_state(self, where: str, state: State | None, *, has_event_time: bool) -> None:
        if state is None and not has_event_time:
            return
        if state is not None and not isinstance(state, State):
            message = f'{where}: state={state!r}: give one, as State(key="user STRING", value="n BIGINT")'
            raise DeclarationError(message)
        if self.settings.concurrent_batches != 1:
            message = (
                f"{where} has a {'state' if state is not None else 'watermark'}, and each of its batches needs that of "
                "the one before it: leave out "
                f"concurrent_batches={self.settings.concurrent_batches}, or declare it in another pipeline"
            )
            raise DeclarationError(message)

    def _in_calendar(self, where: str, inputs: Sequence[Stream | Window]) -> list[Stream | Window]:
        """Return the inputs, and windows as the pipeline's calendar counts them, if it has one."""
        calendar = self.calendar
        if calendar is None:
            return list(inputs)
        try:
            return [entry.in_calendar(calendar) if isinstance(entry, Window) else entry for entry in inputs]
        except ValueError as error:
            message = f"{where}: a window: {error}"
            raise DeclarationError(message) from error

    def _check_windows(self, where: str, output: Output) -> None:
        if self.calendar is not None:
            self._check_calendar_slides(where, output, self.calendar)
            return
        for window in output.windows:
            self._check_window(where, window)
        self._check_slides(where, output)

    def _check_calendar_slides(self, where: str, output: Output, calendar: BatchCalendar) -> None:
        """Refuse different slides in one output, as `_check_slides` does."""
        slides = {
            (entry.slide_span if isinstance(entry, Window) else None) or calendar.interval for entry in output.inputs
        }
        if len(slides) > 1:
            shown = " and ".join(sorted(f"every {slide.text}" for slide in slides))
            message = f"{where}: its inputs would be read {shown}, and what comes between missed: give all one slide"
            raise DeclarationError(message)

    def _check_window(self, where: str, window: Window) -> None:
        if window.needs_calendar:
            message = f'{where}: {window!r}: months and days of the week need a calendar: declare timezone="UTC"'
            raise DeclarationError(message)
        for name, duration in (("length", window.length), ("slide", window.slide or self.interval)):
            if duration % self.interval:
                message = (
                    f"{where}: the {name} of {window!r}, {duration}, is no multiple of the interval, {self.interval}"
                )
                raise DeclarationError(message)

    def _check_slides(self, where: str, output: Output) -> None:
        """Refuse different slides in one output, as Spark does: it would miss parts of an input with a shorter one."""
        for entry in output.inputs:
            slide = (entry.slide if isinstance(entry, Window) else None) or self.interval
            if slide < output.slide:
                stream = entry.stream if isinstance(entry, Window) else entry
                message = (
                    f"{where} is computed every {output.slide}, and its input {entry!r} would be read every {slide}: "
                    f"what comes between would be missed. Give all inputs one slide: "
                    f'{stream.name}.window("{output.slide.total_seconds():g}s", '
                    f'slide="{output.slide.total_seconds():g}s")'
                )
                raise DeclarationError(message)

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        return {
            "interval_ms": _milliseconds(self.interval),
            # Only where it has one, so that a pipeline that was declared before is not a changed one.
            **({} if self.calendar is None else {"calendar": self.calendar.declaration()}),
            "retention_ms": _milliseconds(self.retention),
            "start": self.start,
            "max_records_per_batch": self.max_records_per_batch,
            "max_bytes_per_batch": self.max_bytes_per_batch,
            "catch_up": self.catch_up,
            "max_attempts": self.max_attempts,
            "settings": self.settings.model_dump(mode="json"),
            "streams": [stream.name for stream in self.streams],
            "outputs": {
                output.name: {
                    "inputs": [
                        entry.declaration() if isinstance(entry, Window) else entry.name for entry in output.inputs
                    ],
                    "sink": output.sink.declaration(),
                    # Only where it is declared, so that a pipeline that was declared before is not a changed one.
                    **({} if output.state is None else {"state": output.state.declaration()}),
                    **({} if output.event is None else {"event_time": output.event.declaration()}),
                }
                for output in self.outputs.values()
            },
        }

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"
