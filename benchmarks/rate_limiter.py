"""Measure how close the rate limiter comes to its configured rate, in real time.

Run as ``python -m benchmarks.rate_limiter [--json] [--quick]``. Each rate is held for ten seconds: by a caller that
acquires permits in bulk, as every source of Forebay does, by one that acquires them one by one, and by a limit in
bytes. A figure's ratio is the reached rate to the configured one, or the reverse, whichever is below 1: its only
reference is the configured rate.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.report import Figure, Report, machine
from receiver_runtime.block_path.load.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_RATES = (100, 1_000, 10_000, 100_000, 1_000_000)
_AIM = 0.97
_SECONDS = 10.0
_QUICK_SECONDS = 1.0
_RECORD_BYTES = 100


def _held(take: Callable[[], int], seconds: float) -> float:
    """Call `take` for this many seconds; return the permits per second."""
    began = time.monotonic()
    total = 0
    while (passed := time.monotonic() - began) < seconds:
        total += take()
    return total / passed


def _in_bulk(rate: int, seconds: float) -> float:
    limiter = RateLimiter(rate)

    def take() -> int:
        # Permits for 20 ms: chunks as a source brings them, smaller than the bucket.
        permits = max(1, rate // 50)
        limiter.acquire(permits)
        return permits

    return _held(take, seconds)


def _one_by_one(rate: int, seconds: float) -> float:
    limiter = RateLimiter(rate)

    def take() -> int:
        limiter.acquire()
        return 1

    return _held(take, seconds)


def _in_bytes(rate: int, seconds: float) -> float:
    limiter = RateLimiter(max_bytes_rate=rate * _RECORD_BYTES)

    def take() -> int:
        permits = max(1, rate // 50)
        limiter.acquire(permits, permits * _RECORD_BYTES)
        return permits

    return _held(take, seconds)


def _measure(report: Report, title: str, hold: Callable[[int, float], float], seconds: float) -> None:
    report.section(f"{title}, {seconds:g} s at each rate")
    deviations = []
    for rate in _RATES:
        reached = hold(rate, seconds)
        deviations.append(f"{100 * (reached / rate - 1):+.2f} %")
        report.add(
            Figure(
                f"{title}, {rate:,} records/s",
                reached,
                float(rate),
                "the rate that was set",
                min(reached / rate, rate / reached),
                _AIM,
                "records/s",
            )
        )
    report.note(f"{title}, off the rate by {', '.join(deviations)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rate_limiter", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as one object on the last line")
    parser.add_argument("--quick", action="store_true", help="one second per rate: the first burst counts for 10 %%")
    options = parser.parse_args(arguments)
    seconds = _QUICK_SECONDS if options.quick else _SECONDS
    report = Report("rate_limiter", machine())
    _measure(report, "in bulk", _in_bulk, seconds)
    _measure(report, "one by one", _one_by_one, seconds)
    _measure(report, "by bytes, 100 a record", _in_bytes, seconds)
    report.note("A full bucket, a tenth of a second's worth, passes at the start: +1 % of ten seconds.")
    report.note("One by one, a million calls a second take a quarter of a core: beside other work they may be fewer.")
    report.print(as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
