"""Declare that a stream's records are lines of CSV, and which columns they become."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from receiver_runtime.sources.records.text_records import TextRecords

_NO_SEPARATOR = frozenset("\r\n\0")


class Csv(TextRecords):
    """Each record is one record of CSV, as RFC 4180 has it: its fields become the columns, by their order.

    A field in quotes may have separators and line ends; a quote within it is written twice. A field with nothing in it
    is null; ``""`` is an empty text in a STRING column, else null too. A record with more or fewer fields than
    columns does not fit.

    Args:
        schema: the columns in Spark's DDL, as ``"item STRING, pieces BIGINT NOT NULL, at TIMESTAMP"``.
        separator: one ASCII character.
        quote: one ASCII character, or ``""`` where no character quotes.
        times: for columns whose times are not as ISO 8601 has them: a format by the column's name.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    reader_class: ClassVar[str] = "forebay_contrib.csv_records.reader:CsvReader"

    kind: Literal["csv"] = "csv"
    separator: str = ","
    quote: str = '"'

    def __init__(self, schema: str | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the columns from DDL, or, stored before, as ``columns`` and ``required``. Raises ValueError."""
        super().__init__(schema, **fields)

    @model_validator(mode="after")
    def _check_characters(self) -> Self:
        for name, text, least in (("separator", self.separator, 1), ("quote", self.quote, 0)):
            if not least <= len(text) <= 1 or not text.isascii() or text in _NO_SEPARATOR:
                raise ValueError(f"{name}: {text!r} is not one ASCII character")
        if self.separator == self.quote:
            raise ValueError(f"separator: {self.separator!r} is the quote too: change one of them")
        return self
