"""The original's PIDRateEstimator (C04-C06): from how fast a batch went to the rate that batches can take.

Owns the formula, in the original's order of operations, so that equal inputs give equal doubles. What it remembers
between two batches is a value that can be taken out and put in again (`state`): it belongs in a row, so that a new
leader goes on where the last one stopped. It never reads a clock and never sets a rate.
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
    """What the newest batch that counted left behind; rates in records per second."""

    latest_time_ms: int
    latest_rate: float
    latest_error: float


class PIDRateEstimator:
    """Estimates the rate of one stream for one pipeline. Any number of threads."""

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
        """Begin anew, or after `state`.

        Args:
            batch_interval_ms: the pipeline's batch interval.
            proportional: how much the difference between the latest rate and the processing rate counts.
            integral: how much the backlog counts, which the scheduling delay shows.
            derivative: how much the change of that difference counts.
            min_rate: no rate below this is ever answered.
            state: `state` of an estimator that has seen the batches before.

        Raises:
            ValueError: a value can't work.
        """
        if batch_interval_ms <= 0:
            raise ValueError(f"batch_interval_ms={batch_interval_ms} must be positive")
        for name, weight in (("proportional", proportional), ("integral", integral), ("derivative", derivative)):
            # Written so that not-a-number is refused, too.
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
        """What it remembers; None before the first batch that counts."""
        with self._lock:
            return self._state

    def compute(self, time_ms: int, elements: int, processing_delay_ms: int, scheduling_delay_ms: int) -> float | None:
        """The rate after a batch, in records per second; None when the batch says nothing, and after the first.

        Args:
            time_ms: when the batch ended; one that is not after the latest says nothing.
            elements: how many records it had; an empty one says nothing.
            processing_delay_ms: how long it ran.
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
            # As many records per second as it takes to clear the backlog within one interval.
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
