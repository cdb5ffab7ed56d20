"""What a user declares: streams, pipelines, outputs. Checked when it is declared, written by `forebay apply`.

Importing a pipeline writes nothing and loads neither Dagster nor Spark. A mistake is an error at the line that
makes it.
"""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import ValidationError

from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import dagster as dg
    from pydantic_core import ErrorDetails

    from orchestration.spark.sinks.sink import Sink
    from receiver_runtime.sources.base import Source

CatchUp = Literal["each", "merge"]

# Output names that Forebay's own assets use (design §6).
RESERVED_OUTPUTS = frozenset({"batches", "batches_1m"})
BATCH_PARAMETER = "batch"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class DeclarationError(ValueError):
    """A stream, pipeline or output is declared in a way that can't work; the message says what to change."""


def _checked_name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        message = f"{kind} name {name!r}: use letters, digits and _, and begin with a letter"
        raise DeclarationError(message)
    return name


def _interval(value: str | timedelta, name: str) -> timedelta:
    if isinstance(value, timedelta):
        interval = value
    else:
        try:
            interval = timedelta(seconds=parse_duration(value))
        except ValueError as error:
            message = f"{name}: interval: {error}"
            raise DeclarationError(message) from error
    if interval < timedelta(milliseconds=1):
        message = f"{name}: interval={value!r} must be longer than 0"
        raise DeclarationError(message)
    return interval


class Stream:
    """A named input: one source, read by one or several receivers, belonging to no pipeline."""

    def __init__(self, name: str, source: Source, *, receivers: int = 1, **settings: object) -> None:
        """Declare a stream.

        Args:
            name: letters, digits and _.
            source: where the records come from, such as `SocketText(...)`.
            receivers: how many receivers read it, at the same time.
            settings: any field of `ReceiverSettings`, such as `block_interval="200ms"`, `receiver_max_rate=1000`.

        Raises:
            DeclarationError: a value can't work; names the setting, the value and the way out.
        """
        self.name = _checked_name("stream", name)
        self.source = source
        if receivers < 1:
            message = f"stream {name!r}: receivers={receivers} must be at least 1"
            raise DeclarationError(message)
        self.receivers = receivers
        try:
            self.settings = ReceiverSettings.model_validate(settings)
        except ValidationError as error:
            message = f"stream {name!r}: " + "; ".join(_sentence(detail) for detail in error.errors())
            raise DeclarationError(message) from error

    def declaration(self) -> dict[str, Any]:
        """What `forebay apply` writes."""
        return {
            "source": self.source.model_dump(mode="json"),
            "receivers": self.receivers,
            "settings": self.settings.model_dump(mode="json"),
        }

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"


def _sentence(detail: ErrorDetails) -> str:
    setting = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        close = get_close_matches(setting, ReceiverSettings.model_fields, n=1)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(ReceiverSettings.model_fields)}"
        return f"there is no setting {setting!r}: {hint}"
    return f"{setting}={detail['input']!r}: {detail['msg'].removeprefix('Value error, ')}"


class Output:
    """A function from batch inputs to a result, and the sink that keeps it. Made by `Pipeline.output`."""

    def __init__(
        self, pipeline: Pipeline, function: Callable[..., Any], inputs: Sequence[Stream], sink: Sink, name: str
    ) -> None:
        """Check that `function` takes one parameter per input, in their order, and `batch` on request."""
        self.pipeline = pipeline
        self.function = function
        self.inputs = tuple(inputs)
        self.sink = sink
        self.name = name
        self.description = inspect.getdoc(function)
        parameters = inspect.signature(function).parameters
        self.wants_batch = BATCH_PARAMETER in parameters
        # A parameter with a default is the user's own business.
        expected = [
            parameter.name
            for parameter in parameters.values()
            if parameter.name != BATCH_PARAMETER
            and parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        if len(expected) != len(self.inputs):
            message = (
                f"output {name!r} of pipeline {pipeline.name!r} declares {len(self.inputs)} input(s) "
                f"{[stream.name for stream in self.inputs]}, but its function takes {expected}: "
                "one parameter per input, in their order (and `batch`, if it is wanted)"
            )
            raise DeclarationError(message)
        self.parameters = tuple(expected)

    @property
    def asset_key(self) -> dg.AssetKey:
        """The key of the output's asset, for `deps=[...]` downstream. Loads Dagster."""
        import dagster as dg  # noqa: PLC0415  only who asks for a key pays for Dagster

        return dg.AssetKey([self.pipeline.name, self.name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the user's own function
        """The function itself, so that it can be called in a test."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Output({self.pipeline.name}.{self.name})"


class Pipeline:
    """Batches at multiples of an interval, made of the blocks of its streams, with one or more outputs."""

    def __init__(
        self,
        name: str,
        *,
        interval: str | timedelta,
        catch_up: CatchUp = "each",
        max_attempts: int = 3,
    ) -> None:
        """Declare a pipeline.

        Args:
            name: letters, digits and _.
            interval: the batch interval; batch times are its multiples by the database's clock.
            catch_up: behind schedule, make "each" missed batch, or "merge" them into one at the newest boundary.
            max_attempts: how often a batch is tried before it is quarantined.

        Raises:
            DeclarationError: a value can't work.
        """
        self.name = _checked_name("pipeline", name)
        self.interval = _interval(interval, f"pipeline {name!r}")
        if catch_up not in get_args(CatchUp):
            message = f"pipeline {name!r}: catch_up={catch_up!r} must be one of {', '.join(get_args(CatchUp))}"
            raise DeclarationError(message)
        self.catch_up: CatchUp = catch_up
        if max_attempts < 1:
            message = f"pipeline {name!r}: max_attempts={max_attempts} must be at least 1"
            raise DeclarationError(message)
        self.max_attempts = max_attempts
        self.outputs: dict[str, Output] = {}

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that any output reads, each once, in the order of declaration."""
        found: dict[str, Stream] = {}
        for output in self.outputs.values():
            for stream in output.inputs:
                if found.setdefault(stream.name, stream) is not stream:
                    message = f"pipeline {self.name!r}: two streams are named {stream.name!r}; rename one"
                    raise DeclarationError(message)
        return tuple(found.values())

    def output(
        self, *, inputs: Sequence[Stream], sink: Sink, name: str | None = None
    ) -> Callable[[Callable[..., Any]], Output]:
        """Make the decorated function an output: DataFrames of `inputs` in, a DataFrame for `sink` out.

        Raises:
            DeclarationError: no input, a name that is taken or reserved, parameters that don't fit.
        """

        def declare(function: Callable[..., Any]) -> Output:
            output_name = _checked_name("output", name or function.__name__)
            where = f"output {output_name!r} of pipeline {self.name!r}"
            if output_name in self.outputs:
                message = f"{where} is declared twice: give one of them another name"
                raise DeclarationError(message)
            if output_name in RESERVED_OUTPUTS:
                message = f"{where}: the name is Forebay's own ({', '.join(sorted(RESERVED_OUTPUTS))}); choose another"
                raise DeclarationError(message)
            if not inputs:
                message = f"{where} has no input: name the streams that it reads, inputs=[...]"
                raise DeclarationError(message)
            output = Output(self, function, inputs, sink, output_name)
            self.outputs[output_name] = output
            return output

        return declare

    def declaration(self) -> dict[str, Any]:
        """What `forebay apply` writes."""
        return {
            "interval_ms": round(self.interval / timedelta(milliseconds=1)),
            "catch_up": self.catch_up,
            "max_attempts": self.max_attempts,
            "streams": [stream.name for stream in self.streams],
            "outputs": {
                output.name: {
                    "inputs": [stream.name for stream in output.inputs],
                    "sink": output.sink.declaration(),
                }
                for output in self.outputs.values()
            },
        }

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"
