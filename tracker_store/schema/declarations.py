"""Read pipelines and streams as `forebay apply` wrote them; no other Python module reads that JSON.

What is not written has its default. The SQL function `end_attempt` reads `outputs` and `on_failure`
itself, in its transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

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
    """Hold a window of a stream, given by its name, that an output reads; `slide` is the output's."""

    stream: str
    length: timedelta
    slide: timedelta | None


@dataclass(frozen=True, slots=True)
class OutputDeclaration:
    """Hold the declaration of an output; `slide` is None if it is computed in every batch."""

    sink: Mapping[str, Any]
    slide: timedelta | None
    windows: tuple[WindowDeclaration, ...] = ()
    has_state: bool = False

    def is_due(self, batch_time: datetime) -> bool:
        """Return whether the output is computed in this batch."""
        return self.slide is None or not (batch_time - _EPOCH) % self.slide


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
        )


def _output(declaration: Mapping[str, Any]) -> OutputDeclaration:
    windows = [entry for entry in declaration.get("inputs", ()) if isinstance(entry, dict)]
    slides = [entry["slide_ms"] for entry in windows if entry["slide_ms"]]
    slide = timedelta(milliseconds=max(slides)) if slides else None
    return OutputDeclaration(
        declaration.get("sink", {}),
        slide,
        tuple(
            WindowDeclaration(entry["window"], timedelta(milliseconds=entry["length_ms"]), slide) for entry in windows
        ),
        has_state=bool(declaration.get("state")),
    )
