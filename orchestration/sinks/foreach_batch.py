"""Call a user's function with each batch's result and id, at least once (`foreachBatch`)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import DeliveryGuarantee, Sink, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import OutputAttempt


class ForeachBatchSink(Sink):
    """Call `function(frame, batch_id)` for each batch. At least once.

    If an attempt dies after the call and before the commit in the driver log, the next attempt calls the function
    again; a replay does too. The id is the same each time (the batch time in milliseconds since 1970), so a function
    that stores it with its results can deduplicate them.
    """

    guarantee: ClassVar[DeliveryGuarantee] = DeliveryGuarantee.AT_LEAST_ONCE

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        """Declare a function that takes the result and the batch's id.

        Raises:
            DeclarationError: `function` can't be called with these two arguments.
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
        """Return the declaration that `forebay apply` writes."""
        return {"kind": "foreach_batch", "function": _name(self.function)}

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Call the function."""
        self.function(result, attempt.batch_id)
        return Written(_name(self.function), None)


def _name(function: Any) -> str:  # noqa: ANN401  any callable
    module = getattr(function, "__module__", type(function).__module__)
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"
