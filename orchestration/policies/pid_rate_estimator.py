"""Estimate the rate that batches can process, from the speed of each batch: the original's PIDRateEstimator (C04-C06).

Owns the formula, in the original's order of operations, so that equal inputs give equal doubles. Its memory between two
batches is a value that can be saved and restored (`state`): it belongs in a row, so that a new leader continues where
the last one stopped. It never reads a clock and never sets a rate.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

DEFAULT_PROPORTIONAL = 1.0
DEFAULT_INTEGRAL = 0.2
DEFAULT_DERIVATIVE = 0.0
DEFAULT_MIN_RATE = 100.0


@dataclass(frozen=True, slots=True)
class EstimatorState:
    """Hold the estimator's memory after the newest batch that counted; rates in records per second."""

    latest_time_ms: int
    latest_rate: float
    latest_error: float


class PIDRateEstimator:
    """Estimator of the rate of one stream for one pipeline. Thread-safe."""

    def __init__(
        self,
        batch_interval_ms: int,
        proportional: float = DEFAULT_PROPORTIONAL,
        integral: float = DEFAULT_INTEGRAL,
        derivative: float = DEFAULT_DERIVATIVE,
        min_rate: float = DEFAULT_MIN_RATE,
        *,
        state: EstimatorState | None = None,
    ) -> None:
        """Start without memory, or from `state`.

        Args:
            batch_interval_ms: the pipeline's batch interval.
            proportional: weight of the difference between the latest rate and the processing rate.
            integral: weight of the backlog, which is computed from the scheduling delay.
            derivative: weight of the change of that difference.
            min_rate: the lowest rate that is returned.
            state: `state` of an estimator that has seen the earlier batches.

        Raises:
            ValueError: a value is out of range.
        """
        if batch_interval_ms <= 0:
            raise ValueError(f"batch_interval_ms={batch_interval_ms} must be positive")
        for name, weight in (("proportional", proportional), ("integral", integral), ("derivative", derivative)):
            # Written with `not` so that NaN is refused too.
            if not weight >= 0:
                raise ValueError(f"{name}={weight} must not be negative")
        if not min_rate > 0:
            raise ValueError(f"min_rate={min_rate} must be positive: a rate of 0 would stop the input for good")
        self._batch_interval_ms = batch_interval_ms
        self._proportional = proportional
        self._integral = integral
        self._derivative = derivative
        self._min_rate = min_rate
        self._lock = threading.Lock()
        self._state = state

    @property
    def state(self) -> EstimatorState | None:
        """Return the memory; None before the first batch that counts."""
        with self._lock:
            return self._state

    def compute(self, time_ms: int, elements: int, processing_delay_ms: int, scheduling_delay_ms: int) -> float | None:
        """Return the rate after a batch, in records per second; None when the batch is ignored, and after the first.

        Args:
            time_ms: when the batch ended; a batch that did not end after the latest is ignored.
            elements: how many records it had; an empty batch is ignored.
            processing_delay_ms: how long it ran; a batch with 0 ms is ignored.
            scheduling_delay_ms: how long it had waited for its start.
        """
        with self._lock:
            latest_time = -1 if self._state is None else self._state.latest_time_ms
            if not (time_ms > latest_time and elements > 0 and processing_delay_ms > 0):
                return None
            processing_rate = elements / processing_delay_ms * 1000
            if self._state is None:
                self._state = EstimatorState(time_ms, processing_rate, 0.0)
                return None
            latest = self._state
            seconds = (time_ms - latest.latest_time_ms) / 1000
            error = latest.latest_rate - processing_rate
            # The records per second that would clear the backlog within one interval.
            historical_error = scheduling_delay_ms * processing_rate / self._batch_interval_ms
            change = (error - latest.latest_error) / seconds
            new_rate = max(
                latest.latest_rate
                - self._proportional * error
                - self._integral * historical_error
                - self._derivative * change,
                self._min_rate,
            )
            self._state = EstimatorState(time_ms, new_rate, error)
            return new_rate
