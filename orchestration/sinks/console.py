"""Print each batch's first rows, as Spark's console sink does, to try out a pipeline."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import DeliveryGuarantee, Sink, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import OutputAttempt

_LINE = "-" * 43


class ConsoleSink(Sink):
    """Print results to the run's standard output, which Dagster shows with the step. At least once."""

    guarantee: ClassVar[DeliveryGuarantee] = DeliveryGuarantee.AT_LEAST_ONCE

    def __init__(self, *, rows: int = 20, truncate: bool | int = True) -> None:
        """Print `rows` rows (Spark's numRows), and truncate values (True, or a width) as `show` does.

        Raises:
            DeclarationError: `rows` is less than 1.
        """
        if rows < 1:
            message = f"ConsoleSink: rows={rows} must be at least 1"
            raise DeclarationError(message)
        self.rows = rows
        self.truncate = truncate

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes."""
        return {"kind": "console", "rows": self.rows, "truncate": self.truncate}

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Print the batch's time and its first rows."""
        head = f"{attempt.pipeline}.{attempt.output}, batch {attempt.batch_time.isoformat()}"
        sys.stdout.write(f"{_LINE}\n{head}\n{_LINE}\n")
        sys.stdout.flush()
        result.show(self.rows, truncate=self.truncate)
        return Written("stdout", None)
