"""End the JVM that PySpark keeps in a process: the next session starts another, with the environment as it is then."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext


def end_jvm() -> None:
    """End the JVM, if there is one. Its session must have been stopped."""
    # PySpark keeps it after a session's end, and has no way to end it.
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.kill()
    gateway.proc.wait(30)
    gateway.proc.stdin.close()
    SparkContext._gateway = None
    SparkContext._jvm = None
