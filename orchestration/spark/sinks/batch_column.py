"""The column that says which batch a row is of. Imports nothing: Spark's Python workers need it."""

from __future__ import annotations

BATCH_TIME = "_batch_time"
