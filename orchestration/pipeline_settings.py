"""What can be set of a pipeline's back pressure (keys after ``spark.streaming.backpressure.*``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from orchestration.tracker.pid_rate_estimator import (
    DEFAULT_DERIVATIVE,
    DEFAULT_INTEGRAL,
    DEFAULT_MIN_RATE,
    DEFAULT_PROPORTIONAL,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PipelineSettings(BaseModel):
    """A pipeline's settings with their defaults. What a receiver takes in before the first rate is the stream's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Whether its batches set the rate of the streams that it reads (spark.streaming.backpressure.enabled).
    backpressure_enabled: bool = False
    #: How the rate is found (spark.streaming.backpressure.rateEstimator); there is one way.
    backpressure_rate_estimator: Literal["pid"] = "pid"
    #: How much the difference to the processing rate counts (spark.streaming.backpressure.pid.proportional).
    backpressure_pid_proportional: Weight = DEFAULT_PROPORTIONAL
    #: How much the backlog counts (spark.streaming.backpressure.pid.integral).
    backpressure_pid_integral: Weight = DEFAULT_INTEGRAL
    #: How much a change of that difference counts (spark.streaming.backpressure.pid.derived).
    backpressure_pid_derived: Weight = DEFAULT_DERIVATIVE
    #: No rate below this is set, in records per second (spark.streaming.backpressure.pid.minRate).
    backpressure_pid_min_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = DEFAULT_MIN_RATE

    @classmethod
    def of_row(cls, declaration: Mapping[str, Any]) -> Self:
        """The settings in a pipeline's row; keys of others (or of a newer release) are passed over."""
        settings = declaration.get("settings", {})
        return cls.model_validate({key: value for key, value in settings.items() if key in cls.model_fields})
