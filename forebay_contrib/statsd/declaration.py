"""Declare that a stream's records are lines of statsd, or of DogStatsD: metrics, events and service checks."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from receiver_runtime.sources.records.declared import Records

_COLUMNS = (
    ("name", "string"),
    ("type", "string"),
    ("value", "double"),
    ("values", "list<item: double>"),
    ("text", "string"),
    ("sample_rate", "double"),
    ("tags", "map<string, string>"),
    ("timestamp", "timestamp[us, tz=UTC]"),
    ("container", "string"),
    ("other", "string"),
)


class Statsd(Records):
    """Each record is a line of statsd: ``name:value|type``, with a sample rate, tags and what DogStatsD adds.

    The columns are always the same: ``name``, ``type``, ``value``, ``values`` (of a line with several), ``text`` (the
    value as it was sent), ``sample_rate``, ``tags``, ``timestamp``, ``container``, and ``other``. Events and service
    checks of DogStatsD are rows of the types ``_e`` and ``_sc``.

    Args:
        keep: which of the source's other columns are kept, such as ``["_sender"]``; by default all.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    reader_class: ClassVar[str] = "forebay_contrib.statsd.reader:StatsdReader"

    kind: Literal["statsd"] = "statsd"
    columns: tuple[tuple[str, str], ...] = _COLUMNS

    def __init__(self, schema: None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take ``keep`` and ``raw``. Raises ValueError: a schema is given, as to other kinds of records."""
        if schema is not None:
            raise ValueError(f"{schema!r}: the columns of statsd are given: write Statsd(), with keep= or raw=")
        super().__init__(**fields)

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        known = dict(_COLUMNS)
        if odd := [name for name, kind in self.columns if known.get(name) != kind] or self.required:
            raise ValueError(f"columns: {', '.join(odd)}: those of statsd are given: leave columns and required out")
        return self
