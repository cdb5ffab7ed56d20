"""Define a pipeline's settings: backpressure, batches, runs in Dagster (keys after ``spark.streaming.*``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from orchestration.policies.executor_allocation import SCALING_DOWN_RATIO, SCALING_INTERVAL, SCALING_UP_RATIO
from orchestration.policies.pid_rate_estimator import (
    DEFAULT_DERIVATIVE,
    DEFAULT_INTEGRAL,
    DEFAULT_MIN_RATE,
    DEFAULT_PROPORTIONAL,
)
from receiver_runtime.sources.fields.units import parse_duration
from tracker_store.batches.retry import MAX_LOST_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Mapping

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _checked_duration(value: str) -> str:
    parse_duration(value)
    return value


def _checked_scaling_interval(value: str) -> str:
    seconds = parse_duration(value)
    if seconds <= 0 or seconds % SCALING_INTERVAL.total_seconds():
        raise ValueError(f"{value!r}: the schedule runs once a minute, so give whole minutes, as '60s' or '5m'")
    return value


Retention = Annotated[str, AfterValidator(_checked_duration)]
ScalingInterval = Annotated[str, AfterValidator(_checked_scaling_interval)]


class PipelineSettings(BaseModel):
    """Hold a pipeline's settings and defaults. A stream's settings limit its receivers until the first rate is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Whether its batches set the rate of the streams that it reads (spark.streaming.backpressure.enabled).
    backpressure_enabled: bool = False
    #: Accepted for compatibility only (spark.streaming.backpressure.rateEstimator): no code reads it, and "pid" is its
    #: only value.
    backpressure_rate_estimator: Literal["pid"] = "pid"
    #: Weight of the difference to the processing rate (spark.streaming.backpressure.pid.proportional).
    backpressure_pid_proportional: Weight = DEFAULT_PROPORTIONAL
    #: Weight of the backlog (spark.streaming.backpressure.pid.integral).
    backpressure_pid_integral: Weight = DEFAULT_INTEGRAL
    #: Weight of the change of that difference (spark.streaming.backpressure.pid.derived).
    backpressure_pid_derived: Weight = DEFAULT_DERIVATIVE
    #: The lowest rate that is set, in records per second (spark.streaming.backpressure.pid.minRate).
    backpressure_pid_min_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = DEFAULT_MIN_RATE
    #: How many of its batches may run at the same time. They start in order; with more than 1 they may finish in any
    #: order (spark.streaming.concurrentJobs).
    concurrent_batches: Annotated[int, Field(ge=1, le=100)] = 1
    #: How many outputs of a batch run at the same time, in threads of its Spark session
    #: (spark.streaming.concurrentJobs). One that fails holds up no other, also with 1.
    concurrent_outputs: Annotated[int, Field(ge=1, le=100)] = 1
    #: Whether a batch without records runs; None: only if the content of a window has changed since its output was last
    #: due: it got records, or lost some, even its last ones.
    run_empty_batches: bool | None = None
    #: What happens when a batch has used up its attempts: "continue" with the next batch, or "halt" until that one is
    #: replayed or discarded, or `forebay start` continues the pipeline. (The original continues with the next batch.)
    on_failure: Literal["continue", "halt"] = "continue"
    #: How many attempts of a batch may be lost with their process, host or Spark before it is quarantined. These
    #: attempts count here and not in `max_attempts`.
    max_lost_attempts: Annotated[int, Field(ge=1)] = MAX_LOST_ATTEMPTS
    #: Whether output assets are partitioned in Dagster by batch time, so that a backfill replays an hour's or a day's
    #: batches; None: they are not.
    partitions: Literal["hour", "day"] | None = None
    #: How many finished batch runs Dagster keeps (spark.streaming.ui.retainedBatches); failed ones are not counted.
    ui_retained_batches: Annotated[int, Field(ge=1)] = 1_000
    #: How long Dagster keeps a finished batch run that has not failed.
    run_retention: Retention = "24h"
    #: How long Dagster keeps a failed batch run.
    failed_run_retention: Retention = "14d"

    #: Whether the decisions of the scaling schedule take effect (spark.streaming.dynamicAllocation.enabled); otherwise
    #: they are advice. On a cluster a decision sets the number of executors of the next Spark session; on a local
    #: master, the number of batch drivers.
    dynamic_allocation_enabled: bool = False
    #: The smallest number of executors (spark.streaming.dynamicAllocation.minExecutors).
    dynamic_allocation_min_executors: Annotated[int, Field(ge=1)] = 1
    #: The largest number of executors (spark.streaming.dynamicAllocation.maxExecutors); None: as many as Spark gives.
    dynamic_allocation_max_executors: Annotated[int, Field(ge=1)] | None = None
    #: How long after a decision the next one is due (spark.streaming.dynamicAllocation.scalingInterval), at least 60 s:
    #: the schedule runs once a minute.
    dynamic_allocation_scaling_interval: ScalingInterval = "60s"
    #: The fraction of the interval from which batches take too long (spark.streaming.dynamicAllocation.scalingUpRatio).
    dynamic_allocation_scaling_up_ratio: Ratio = SCALING_UP_RATIO
    #: The fraction up to which they have spare time (spark.streaming.dynamicAllocation.scalingDownRatio).
    dynamic_allocation_scaling_down_ratio: Ratio = SCALING_DOWN_RATIO

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        up, down = self.dynamic_allocation_scaling_up_ratio, self.dynamic_allocation_scaling_down_ratio
        if down >= up:
            message = (
                f"dynamic_allocation_scaling_up_ratio={up:g} must be more than "
                f"dynamic_allocation_scaling_down_ratio={down:g}"
            )
            raise ValueError(message)
        least, most = self.dynamic_allocation_min_executors, self.dynamic_allocation_max_executors
        if most is not None and most < least:
            message = (
                f"dynamic_allocation_max_executors={most} must not be less than "
                f"dynamic_allocation_min_executors={least}"
            )
            raise ValueError(message)
        return self

    @classmethod
    def of_row(cls, settings: Mapping[str, Any]) -> Self:
        """Read the settings from a pipeline's row; ignore keys of other settings and of newer releases."""
        return cls.model_validate({key: value for key, value in settings.items() if key in cls.model_fields})
