"""Name the column that holds a row's batch time. Imports nothing, because Spark's Python workers load it."""

from __future__ import annotations

BATCH_TIME = "_batch_time"
