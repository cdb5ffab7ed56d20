"""A function of the user's is given each batch's result: at least once, with the batch's id (`foreachBatch`)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from orchestration.pipeline import DeclarationError
from orchestration.spark.sinks.sink import Guarantee, Sink, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from orchestration.spark.sinks.sink import OutputAttempt


class ForeachBatchSink(Sink):
    """Calls `function(frame, batch_id)`. At least once.

    An attempt that dies after the call, and before the driver log's row, has the function called again by the next
    attempt; so does a replay. The id is the same each time (the batch time in milliseconds since 1970), so that a
    function that keeps it with what it writes can make that once.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        """`function` takes the result and the batch's id.

        Raises:
            DeclarationError: it does not.
        """
        try:
            inspect.signature(function).bind(None, 0)
        except TypeError as error:
            message = (
                f"ForeachBatchSink: {_name(function)} can't be called with (frame, batch_id): {error}: "
                "write def function(frame, batch_id)"
            )
            raise DeclarationError(message) from None
        self.function = function

    def declaration(self) -> dict[str, Any]:
        """What `forebay apply` writes of it."""
        return {"kind": "foreach_batch", "function": _name(self.function)}

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Call the function."""
        self.function(result, attempt.batch_id)
        return Written(_name(self.function), None)


def _name(function: Any) -> str:  # noqa: ANN401  any callable
    module = getattr(function, "__module__", type(function).__module__)
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"
